"""The site: pages generated from the code, links in the site's form, and a build without a warning."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from maintain import records, site_hooks, site_pages
from testing.pages import fences

from verl_npu import environment
from verl_npu.cli import main as command

PROJECT = Path(__file__).resolve().parents[4]
DOCS = PROJECT / "docs"
PUBLISHED = sorted(DOCS.rglob("*.md"))
ENGLISH = [page.relative_to(DOCS).as_posix() for page in PUBLISHED if ".zh-CN" not in page.name]
PAGES = [*sorted(PROJECT.glob("*.md")), *PUBLISHED, *sorted((PROJECT / "packages").glob("*/*.md"))]
GENERATED = site_pages.pages()


def words(text: str) -> str:
    """Return a text without blanks: each release of click breaks lines at other places, in Chinese within words."""
    return "".join(text.split())


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_pages_made_from_the_code_are_up_to_date(page: Path) -> None:
    assert words(page.read_text()) == words(GENERATED[page]), "run python scripts/maintain/site_pages.py"


def test_a_variable_that_is_new_reaches_its_table() -> None:
    made = site_pages.variables("en", {"VERL_NPU": environment.SWITCH})
    assert "| `VERL_NPU` |" in made
    assert "| `VERL_NPU_STRICT` |" not in made


@pytest.mark.parametrize("path", sorted(records.RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_has_what_each_run_needs_and_is_simulated(path: Path) -> None:
    group = records.read(path)
    assert group.title
    assert re.search(r"[\u4e00-\u9fff]", group.title_zh)
    assert all(run.job and run.results and run.simulated for run in group.runs)


def test_a_run_without_a_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"title": "A", "title_zh": "甲", "common": {"pin": "v1"}, "runs": [{"job": "b"}]}'
    )
    with pytest.raises(ValueError, match=r"a\.json: b: expected date, pin, job"):
        records.read(tmp_path / "a.json")


def test_the_index_for_programs_lists_every_page() -> None:
    listed = {(DOCS / path).resolve() for path in re.findall(r"\(([\w./-]+\.md)\)", (DOCS / "llms.txt").read_text())}
    assert {page.relative_to(DOCS).as_posix() for page in listed if DOCS in page.parents} == set(ENGLISH)


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r"(?m)^ +- (?:Home: )?([\w./-]+\.md)$", (PROJECT / "mkdocs.yml").read_text())
    assert sorted(named) == sorted(["README.md", *ENGLISH])


REPOSITORY = "https://example.invalid/us/verl-npu"


@pytest.mark.parametrize(
    ("written", "on_the_site"),
    [
        ("One. [中文](design.zh-CN.md)", "One."),
        ("一。[English](design.md)", "一。"),
        ("[engines](engines.zh-CN.md#表)", "[engines](engines.md#表)"),
        ("[x](design.md#words)", "[x](design.md#words)"),
        ("[r](../README.zh-CN.md#表)", "[r](README.md#表)"),
        ("[w](reference/rules.zh-CN.md)", "[w](reference/rules.md)"),
        ("[j](records/prove.json)", f"[j]({REPOSITORY}/blob/main/docs/records/prove.json)"),
        ("![p](pictures/plan.png)", "![p](pictures/plan.png)"),
        ("[C](../CONTRIBUTING.md#tests)", f"[C]({REPOSITORY}/blob/main/CONTRIBUTING.md#tests)"),
        ("[r](../scripts/recipes/a.sh)", f"[r]({REPOSITORY}/blob/main/scripts/recipes/a.sh)"),
        ("一行，\n另一行", "一行，另一行"),
        ("一行。\n[设计](design.zh-CN.md)", "一行。[设计](design.md)"),
        ("一行\nverl", "一行\nverl"),
        ("[out](https://example.org/中文)", "[out](https://example.org/中文)"),
    ],
)
def test_links_are_rewritten_for_the_site(written: str, on_the_site: str) -> None:
    assert site_hooks.on_page_markdown(written, {"repo_url": f"{REPOSITORY}/"}) == on_the_site


def test_a_link_out_of_the_pages_is_plain_words_where_the_repositorys_address_is_not_known() -> None:
    written = "See [CONTRIBUTING](../CONTRIBUTING.md#tests) and [x](design.md)."
    assert site_hooks.on_page_markdown(written, {"repo_url": ""}) == "See CONTRIBUTING and [x](design.md)."


def test_the_sites_index_for_programs_leads_to_its_own_pages(tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("- [a](reference/rules.md): A?\n- [b](../README.md): B?\n")
    site_hooks.on_post_build({"repo_url": REPOSITORY, "site_dir": str(tmp_path)})
    assert (tmp_path / "llms.txt").read_text() == "- [a](reference/rules/): A?\n- [b](./): B?\n"


def test_no_page_and_no_metadata_names_a_repository_of_ours() -> None:
    """Nobody has registered an address for this project: anybody could register one that is written down."""
    files = [*PAGES, *DOCS.glob("*.txt"), *PROJECT.glob("*.yml"), PROJECT / "pyproject.toml"]
    files += PROJECT.glob("packages/*/pyproject.toml")
    ours = re.compile(
        r"(github|gitee|gitcode|gitlab)\.(com|io)/(verl-npu|virtual-ascend)|verl-npu\.(github|readthedocs)\.io"
    )
    assert [path.name for path in files if ours.search(path.read_text())] == []


def shown(page: Path) -> list[str]:
    """Return the calls of verl-npu in the fenced blocks of a page, and those in backticks."""
    text = page.read_text()
    typed = [line.strip() for fence in fences(text) for line in fence.text.splitlines()]
    inline = re.findall(r"`(verl-npu [^`]+)`", text)
    calls = [re.split(r"  #| \| ", line)[0] for line in [*typed, *inline] if re.match(r"verl-npu [a-z]", line)]
    # A placeholder, or a part of a line of output, is no call.
    return [call for call in dict.fromkeys(calls) if not re.search(r"…|\.\.\.|: | \[| -- ", call)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_every_call_that_a_page_shows_is_understood(page: Path) -> None:
    assert isinstance(command, click.Group)
    wrong = []
    for call in shown(page):
        _, name, *rest = shlex.split(call)
        one = command.get_command(click.Context(command), name)
        try:
            assert one is not None
            # Parses the whole call without running it.
            one.make_context(name, [word for word in rest if word != "-"])
        except (click.MissingParameter, click.BadOptionUsage):
            # Running text may name a command without its arguments.
            continue
        except click.BadParameter as error:
            # A word in capitals stands for a value of the reader's.
            if not re.search(r"\b[A-Z]{3,}\b", call):
                wrong.append((call, error.format_message()))
        except click.exceptions.Exit:
            continue
        except click.UsageError as error:
            wrong.append((call, error.format_message()))
    assert not wrong


QUICK = ("check", "doctor", "env", "explain", "lint", "setup", "status")
"""Commands that only look, and are done in seconds."""
CALLS = sorted({call for page in PAGES for call in shown(page) if call.split()[1] in QUICK})


# `doctor --hang` prints everything that runs on this machine meanwhile, other tests' jobs included.
SLOW = ("--level", "--cluster", "--hang")


@pytest.mark.parametrize("call", [call for call in CALLS if not any(option in call for option in SLOW)])
def test_every_quick_call_of_the_pages_runs_to_its_end(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, *rest = shlex.split(call)
    ended = CliRunner().invoke(command, rest)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code in (0, 1, 2)
    assert "Traceback" not in ended.output


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as it is published, with the address of a repository whose server the theme knows how to ask."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("material", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
        env=os.environ | {"REPOSITORY_URL": "https://github.com/example/example"},
    )
    assert built.returncode == 0, built.stderr
    return folder


class Asked(HTMLParser):
    """Collects all that a browser requests for a page on its own, or that makes the theme's script request it."""

    _LOADED = ("src", "srcset", "poster", "data", "background")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.others: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        asked = [values[key] for key in self._LOADED if key in values]
        if tag == "link" and not {"canonical", "alternate", "prev", "next"} & set(values.get("rel", "").split()):
            asked.append(values.get("href", ""))
        asked += STYLE_URLS.findall(values.get("style", ""))
        self.others += [address for address in asked if FOREIGN.match(address)]
        # Mermaid comes from unpkg.com where there is a diagram; the repository's stars come from its server's API.
        if "mermaid" in values.get("class", "").split() or values.get("data-md-component") == "source":
            self.others.append(f"<{tag}>: {values}")


FOREIGN = re.compile(r"\s*(https?:)?//")
STYLE_URLS = re.compile(r"(?:url\(|@import\s)\s*[\"']?([^\"')\s]+)")


def test_the_site_has_both_languages_and_the_index_for_programs(site: Path) -> None:
    for name in (
        "index.html",
        "zh-CN/index.html",
        "install/index.html",
        "zh-CN/reference/rules/index.html",
        "llms.txt",
    ):
        assert (site / name).is_file()
    assert (site / "llms.txt").is_file()


def test_no_page_of_the_site_asks_another_server_for_anything(site: Path) -> None:
    found = {page.relative_to(site).as_posix(): Asked(page.read_text()).others for page in site.rglob("*.html")}
    found |= {
        style.relative_to(site).as_posix(): [
            one for one in STYLE_URLS.findall(style.read_text()) if FOREIGN.match(one)
        ]
        for style in [*site.rglob("*.css"), *site.rglob("*.svg")]
    }
    assert len(found) > 2 * len(GENERATED)
    assert {page: asked for page, asked in found.items() if asked} == {}


@pytest.mark.parametrize(
    "page",
    [
        '<img src="https://example.org/a.png">',
        '<script src="//example.org/a.js"></script>',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<pre class="mermaid">',
        '<a class="md-source" data-md-component="source" href="https://github.com/a/b">',
        '<p style="background: url(https://example.org/a.png)">',
    ],
)
def test_what_asks_another_server_is_found(page: str) -> None:
    assert Asked(page).others


def test_a_link_asks_nobody() -> None:
    assert not Asked(
        '<a href="https://example.org/">x</a><img src="../a.png"><link rel="canonical" href="//x">'
    ).others


@pytest.mark.parametrize(("home", "section"), [("index.html", "Install and use"), ("zh-CN/index.html", "安装和使用")])
def test_the_home_is_the_readme(site: Path, home: str, section: str) -> None:
    assert re.search(rf"<h2[^>]*>{section}", (site / home).read_text())
