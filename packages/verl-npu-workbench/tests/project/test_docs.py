from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from testing.interpreter import Interpreter
from testing.pages import fences, outside_of_fences

from verl_npu import environment
from verl_npu.cli import main as command
from verl_npu.features import load
from verl_npu.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[4]
READMES = (PROJECT / "README.md", PROJECT / "README.zh-CN.md")
WORKBENCH = PROJECT / "packages" / "verl-npu-workbench"
PAGES = sorted(
    [path for folder in (PROJECT / "docs", PROJECT / ".github", WORKBENCH) for path in folder.rglob("*.md")]
    + [*PROJECT.glob("*.md")],
    key=lambda path: path.as_posix(),
)
DOCS = PROJECT / "docs"
PUBLISHED = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "reference").glob("*.md"))]
ENGLISH = [page for page in PUBLISHED if not page.name.endswith(".zh-CN.md")]

readme = pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)


@pytest.fixture(scope="session")
def project() -> dict:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())


def name(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def headings(page: Path) -> list[str]:
    return [line for line in outside_of_fences(page.read_text()) if re.match(r"#+ ", line)]


def anchor(heading: str) -> str:
    """Return the fragment that a heading gets on GitHub."""
    kept = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return kept.replace(" ", "-")


def first_column(page: Path, heading: str) -> list[str]:
    """Return the texts in backticks in the first column of the first table after a heading."""
    text = page.read_text().partition(f"\n{heading}\n")[2]
    assert text, f"{name(page)} has no {heading}"
    table = re.search(r"(?m)^\|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text)
    assert table is not None
    return [re.findall(r"`([^`]+)`", row.split("|")[1])[0] for row in table[1].splitlines()]


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", "\n".join(outside_of_fences(page.read_text())))
    return [link for link in found if not link.startswith(("http://", "https://", "mailto:"))]


# Both languages.


@pytest.mark.parametrize("page", [READMES[0], *ENGLISH], ids=name)
def test_a_page_has_a_chinese_twin_with_the_same_outline(page: Path) -> None:
    twin = page.with_name(f"{page.stem}.zh-CN.md")
    assert twin.is_file()
    levels = [[heading.split(" ")[0] for heading in headings(one)] for one in (page, twin)]
    assert levels[0] == levels[1]


# The help of the commands is Chinese on the Chinese page.
@pytest.mark.parametrize("page", [READMES[0], *(page for page in ENGLISH if page.stem != "commands")], ids=name)
def test_a_page_and_its_twin_have_the_same_commands_and_tables(page: Path) -> None:
    def shape(text: str) -> tuple[list[str], list[int]]:
        blocks = [fence.text for fence in fences(text)]
        commands = [line.split("#")[0].rstrip() for block in blocks for line in block.splitlines()]
        rows = [line.count("|") for line in outside_of_fences(text.replace("\\|", "")) if line.startswith("|")]
        return commands, rows

    assert shape(page.read_text()) == shape(page.with_name(f"{page.stem}.zh-CN.md").read_text())


# Links.


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in {anchor(one) for one in headings(target)}):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", [READMES[0], *ENGLISH], ids=name)
def test_a_page_and_its_twin_lead_to_the_same_places_and_show_the_same_pictures(page: Path) -> None:
    def targets(one: Path) -> list[str]:
        paths = [link.partition("#")[0].replace(".zh-CN", "") for link in links(one)]
        return sorted(path for path in paths if path != page.name)

    assert targets(page) == targets(page.with_name(f"{page.stem}.zh-CN.md"))


def test_the_two_readmes_name_the_same_things_in_code() -> None:
    def named(page: Path) -> list[str]:
        return sorted(re.findall(r"`([^`\n]+)`", "\n".join(outside_of_fences(page.read_text()))))

    assert named(READMES[0]) == named(READMES[1])


@pytest.mark.parametrize("page", [*READMES, *PUBLISHED], ids=name)
def test_a_page_links_to_its_twin_above_its_first_section(page: Path) -> None:
    chinese = page.name.endswith(".zh-CN.md")
    twin = page.name.replace(".zh-CN", "") if chinese else f"{page.stem}.zh-CN.md"
    assert f"[{'English' if chinese else '中文'}]({twin})" in page.read_text().partition("\n## ")[0]


# Pictures.


def pictures(page: Path) -> list[tuple[str, Path]]:
    """Return the alternative text and the file of each picture of a page."""
    found = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
    return [(text, (page.parent / path).resolve()) for text, path in found]


SHOWN = [(page, text, path) for page in PAGES for text, path in pictures(page)]


@pytest.mark.parametrize(
    ("page", "text", "path"), SHOWN, ids=[f"{name(page)}: {path.name}" for page, _, path in SHOWN]
)
def test_a_picture_is_there_and_says_what_it_shows_in_the_language_of_its_page(
    page: Path, text: str, path: Path
) -> None:
    assert path.is_file()
    assert len(text) > 20
    assert bool(re.search(r"[\u4e00-\u9fff]", text)) is page.name.endswith(".zh-CN.md")


def test_pictures_are_small_and_each_is_shown() -> None:
    files = list((DOCS / "pictures").iterdir())
    assert {path for _, _, path in SHOWN} == set(files)
    assert sum(path.stat().st_size for path in files) < 200_000


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_asks_no_server_for_anything(picture: Path) -> None:
    assert not re.search(r"(url\(|href=)[\"']?(https?:)?//", picture.read_text())


# Indexes.


@readme
def test_a_readme_links_to_every_page_of_its_language(page: Path) -> None:
    chinese = page.name.endswith(".zh-CN.md")
    pages = {each for each in PUBLISHED if each.name.endswith(".zh-CN.md") is chinese}
    assert pages <= {(page.parent / link).resolve() for link in links(page)}


def test_the_pages_are_few_and_short() -> None:
    front = [READMES[0], *(page for page in ENGLISH if page.parent == DOCS)]
    assert len(front) <= 15
    assert sum(len(page.read_text().split()) for page in front) <= 25_000


# Facts that are stated once.


def test_pip_and_the_workflow_take_the_same_pythons(project: dict) -> None:
    assert project["project"]["requires-python"] == ">=3.10,<3.13"
    named = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if " :: Python :: 3." in c]
    for workflow in ("tests.yml", "release.yml"):
        (matrix,) = re.findall(r"python: \[(.*)\]", (PROJECT / ".github" / "workflows" / workflow).read_text())
        assert named == re.findall(r"[\d.]+", matrix) == ["3.10", "3.11", "3.12"]


@readme
def test_the_readme_names_the_version(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"verl-npu:? (\d+\.\d+\.\d+\S*?)[: ]", text)) == {__version__}


@pytest.mark.parametrize("folder", [PROJECT, WORKBENCH], ids=lambda folder: folder.name)
def test_the_changelog_begins_with_the_version(folder: Path) -> None:
    sections = re.findall(r"(?m)^## \[(.+?)\] - (.*)$", (folder / "CHANGELOG.md").read_text())
    version, day = sections[0]
    assert version == __version__
    assert re.fullmatch(r"unreleased|\d{4}-\d{2}-\d{2}", day)


@readme
def test_the_readme_lists_the_features(page: Path) -> None:
    heading = "## What it changes" if page == READMES[0] else "## 它改变了什么"
    assert sorted(first_column(page, heading)) == sorted(feature.name for feature in load())


def test_the_readme_of_the_workbench_lists_its_commands() -> None:
    assert isinstance(command, click.Group)
    named = {cell.split()[1] for cell in first_column(WORKBENCH / "README.md", "## Commands")}
    assert named | {"check", "env", "explain", "status"} == set(command.list_commands(click.Context(command)))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_variable_that_a_page_names_is_declared(page: Path) -> None:
    named = set(re.findall(r"\bVERL_NPU(?:_[A-Z_]*[A-Z])?\b(?!_?\*)", page.read_text()))
    assert named <= set(environment.VARIABLES)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_extra_that_a_page_names_is_declared(page: Path) -> None:
    for folder, distribution in ((PROJECT, "verl-npu"), (WORKBENCH, "verl-npu-workbench")):
        declared = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(rf"{distribution}\[([a-z,]+)\]", page.read_text())
        assert {extra for one in named for extra in one.split(",")} <= set(declared)


# The reference names upstream's files and those of packages by themselves, too.
@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "reference"], ids=name)
def test_every_script_and_test_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(
        r"(?<![\w/.-])((?:scripts|tests|benchmarks|verl_npu|packages)/[\w./-]+\.(?:py|sh|json|h|cpp))",
        page.read_text(),
    )
    assert not [path for path in named if not (PROJECT / path).exists()]


@pytest.mark.upstream
@pytest.mark.nightly("README", "verl_npu/session.py", "patches")
def test_the_line_that_the_readmes_show_is_what_the_driver_prints(interpreter: Interpreter) -> None:
    (shown,) = {line for page in READMES for line in re.findall(r"(?m)^verl-npu: .*$", page.read_text())}
    program = (
        "import json; from importlib.metadata import version; "
        "names = ('verl', 'transformers', 'hydra-core', 'tensordict'); "
        "print(json.dumps([version(name) for name in names])); import torch, verl"
    )
    if find_spec("verl") is None:
        pytest.skip("needs verl")
    result = interpreter.run(program, VERL_NPU="on")
    assert result.code == 0, result.err
    verl, transformers, hydra, tensordict = json.loads(result.out.splitlines()[0])
    here = f"verl v{verl}, transformers {transformers}, hydra {hydra}, tensordict {tensordict};"
    if here not in shown:
        pytest.skip(f"the line is for other versions than {here}")
    assert shown in result.err.splitlines()


# Facts that are stated in two files.


def test_pre_commit_runs_the_versions_of_the_extra_dev(project: dict) -> None:
    pinned = [one.split("==") for one in project["project"]["optional-dependencies"]["dev"] if "==" in one]
    configuration = (PROJECT / ".pre-commit-config.yaml").read_text()
    revisions = dict(re.findall(r"/(?:mirrors-)?(ruff|mypy)(?:-pre-commit)?\n    rev: v(\S+)", configuration))
    assert revisions == dict(pinned)
