"""Writes the tables of pins in pages and workflows, from the workbench's files: run it after a file changed.

    python scripts/maintain/pins.py            write the tables
    python scripts/maintain/pins.py --check    status 1 if one is not up to date

It writes the tables of versions in docs/reference/versions.md, those of pins in the READMEs, their line of the
transformers releases that have a lock, the jobs of .github/workflows/smoke.yml, and the checkouts of nightly.yml.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.version import Version
from verl_npu_workbench.pins import PINS, Cell, Claim, Component, Pin, Pins, Source

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.pins import DEFAULT, is_released
from maintain.section import markdown_table, options, replaced, rewrite

from verl_npu.pins import locks_folder

PROJECT = Path(__file__).resolve().parents[2]
WORKFLOWS = PROJECT / ".github" / "workflows"
REFERENCE = PROJECT / "docs" / "reference"
VERSIONS = {"en": REFERENCE / "versions.md", "zh": REFERENCE / "versions.zh-CN.md"}
READMES = {"en": PROJECT / "README.md", "zh": PROJECT / "README.zh-CN.md"}
BEGIN = "<!-- {table}: made by scripts/maintain/pins.py -->"
END = "<!-- end of {table} -->"
TABLES = ("versions", "documents", "contradictions")
_YAML_BEGIN = "# Made by scripts/maintain/pins.py."
_YAML_END = "# End of what is made."

_KEYS = {
    "": "published version_in_git recipes nightly_checkout seen training smoke environment",
    "training": "jobs transformers torch ray_init sft virtual_rollout reward megatron_core small requirements engine",
    "smoke": "job transformers torch_npu rollout mindspeed",
    "environment": "id source like revision images documents versions published",
}
"""The allowed keys of a pin's file, by table."""

_HEADINGS = {
    "en": ("part", ("number", "document"), ("part", "pin", "what it says", "document", "note")),
    "zh": ("组件", ("编号", "文档"), ("组件", "版本", "说法", "文档", "说明")),
}
_WORDS = {
    "en": {"sglang": "SGLang: ", "a5": "A5: ", "arm": "ARM: ", "any version": "any", "not supported": "none"},
    "zh": {"sglang": "SGLang：", "a5": "A5：", "arm": "ARM：", "any version": "任意", "not supported": "不支持"},
}
_LOCKED = {
    "en": (" to ", ", ", "The patches of transformers have [locks](patches/README.md) for {}."),
    "zh": (" 至 ", "、", "对 transformers 的补丁有以下版本的[锁](patches/README.md)：{}。"),
}
_SEEN = {
    "en": ("pin", "from", "supported until", "seen on virtual NPUs"),
    "zh": ("pin", "来源", "支持至", "在虚拟 NPU 上看到的"),
}
SUPPORT_MONTHS = 18
"""The months of support after upstream published the revision."""


class BadPin(Exception):
    """A pin's file has an unknown key, or names a pin that lacks the entry."""


def check(pins: Pins) -> None:
    """Raise BadPin if a file has an unknown key, or names a pin that lacks the entry."""
    for name in pins:
        said = pins.said(name)
        for table, keys in _KEYS.items():
            entries = [said] if not table else said[table] if isinstance(said[table], list) else [said[table]]
            unknown = {key for entry in entries for key in entry} - {*keys.split()}
            if unknown:
                where = f"{name}.toml: {table or 'top level'}"
                raise BadPin(f"{where}: expected some of {keys}; found {', '.join(sorted(unknown))}")
        for own in said["environment"]:
            like = own.get("like", name)
            there = pins.said(like)["environment"] if like in [*pins] else []
            alike = [each for each in there if each["id"] == own["id"]]
            if not alike or ("like" in alike[0] and like != name):
                raise BadPin(f"{name}.toml: expected `like` to name a pin with an environment {own['id']} of its own")


def made(pins: Pins = PINS) -> dict[Path, str]:
    """Return all generated files with their texts; raise BadPin, or ValueError if a marker is missing."""
    check(pins)
    found = {page: render(page.read_text(), language, pins) for language, page in VERSIONS.items()}
    for language, page in READMES.items():
        text = replaced(page.read_text(), BEGIN.format(table="pins"), END.format(table="pins"), _seen(pins, language))
        line = locked((path.name for path in (locks_folder() / "transformers").iterdir()), language)
        found[page] = replaced(text, BEGIN.format(table="transformers"), END.format(table="transformers"), line)
    made_lines = {
        "smoke.yml": _smoke(pins),
        "nightly.yml": _checkouts(pins),
        "tests.yml": _smoke_of_pull_requests(pins),
    }
    for page, lines in made_lines.items():
        path = WORKFLOWS / page
        begin, end = (_marker(path.read_text(), marker) for marker in (_YAML_BEGIN, _YAML_END))
        found[path] = replaced(path.read_text(), begin, end, "\n".join(lines))
    return found


def supported_until(published: datetime.date) -> str:
    """Return the last month in which a pin is supported, as YYYY-MM."""
    months = published.year * 12 + published.month - 1 + SUPPORT_MONTHS
    return f"{months // 12}-{months % 12 + 1:02}"


def _seen(pins: Pins, language: str) -> str:
    """Return the READMEs' table of pins."""
    rows = []
    for name in pins:
        said = pins.said(name)
        origin = "PyPI" if is_released(name) else "git"
        rows.append((f"`{name}`", origin, supported_until(said["published"]), said["seen"][language]))
    return markdown_table(_SEEN[language], rows)


def locked(releases: Iterable[str], language: str) -> str:
    """Return the line that names the minor versions of transformers whose releases have a lock."""
    to, comma, line = _LOCKED[language]
    runs: list[list[tuple[int, ...]]] = []
    for minor in sorted({Version(release).release[:2] for release in releases}):
        if runs and minor == (runs[-1][-1][0], runs[-1][-1][1] + 1):
            runs[-1].append(minor)
        else:
            runs.append([minor])
    ends = (dict.fromkeys(".".join(map(str, minor)) for minor in (run[0], run[-1])) for run in runs)
    return line.format(comma.join(to.join(both) for both in ends))


def _marker(text: str, marker: str) -> str:
    """Return a marker's whole line."""
    return next((line for line in text.splitlines() if line.strip() == marker), marker)


def _smoke(pins: Pins) -> Iterator[str]:
    for name, pin in pins.items():
        said = pins.said(name)
        for row in said["smoke"]:
            source = {} if is_released(name) else {"commit": pin.commit}
            built = said["training"].get("engine", {}).get("commit") if "rollout" in row else None
            asked = {"pin": name, "job": row["job"], **source, **row, **({"engine": built} if built else {})}
            yield f"          - {{ {', '.join(f'{key}: {value}' for key, value in asked.items())} }}"


def _smoke_of_pull_requests(pins: Pins) -> Iterator[str]:
    """Yield the jobs of the default pin and of the newest release, which both come from PyPI."""
    for name in (DEFAULT, [name for name in pins if is_released(name)][-1]):
        yield f"          - {{ pin: {name}, job: grpo }}"


def _checkouts(pins: Pins) -> Iterator[str]:
    for name, pin in pins.items():
        if pins.said(name)["nightly_checkout"]:
            yield "      - uses: actions/checkout@v4"
            yield "        with:"
            yield "          repository: verl-project/verl"
            yield f"          ref: {pin.commit}"
            yield f"          path: upstreams/verl-{name}"


def render(text: str, language: str, pins: Mapping[str, Pin]) -> str:
    """Return the text of a page with new tables; raise ValueError if a marker is missing."""
    numbers = _numbers(pins)
    tables = {
        "versions": _versions(pins, numbers, language),
        "documents": _documents(numbers, language),
        "contradictions": _contradictions(pins, numbers, language),
    }
    for table in TABLES:
        text = replaced(text, BEGIN.format(table=table), END.format(table=table), tables[table])
    return text


def _name(source: Source) -> str:
    return f"{source.project}/{source.document}"


def _numbers(pins: Mapping[str, Pin]) -> dict[str, int]:
    claims = (claim for _, cells in _named(pins) for cell in cells.values() for claim in cell.claims)
    return {name: number for number, name in enumerate(dict.fromkeys(_name(claim.source) for claim in claims), 1)}


def _versions(pins: Mapping[str, Pin], numbers: Mapping[str, int], language: str) -> str:
    named = [*_named(pins)]
    parts = [part for part in Component if any(part in cells for _, cells in named)]
    rows = [(f"`{part.value}`", *(_cell(cells.get(part), numbers, language) for _, cells in named)) for part in parts]
    return markdown_table((_HEADINGS[language][0], *(f"`{name}`" for name, _ in named)), rows)


def _named(pins: Mapping[str, Pin]) -> Iterator[tuple[str, Mapping[Component, Cell]]]:
    """Yield each environment of each pin, by the name that commands print."""
    for pin in pins.values():
        for each in pin.environments:
            yield pin.name_of(each), each.cells


def _cell(cell: Cell | None, numbers: Mapping[str, int], language: str) -> str:
    said: dict[str, list[int]] = {}
    for claim in cell.claims if cell else ():
        said.setdefault(_said(claim, language), []).append(numbers[_name(claim.source)])
    return "; ".join(f"{text} [{', '.join(map(str, sorted({*where})))}]" for text, where in said.items()) or "-"


def _said(claim: Claim, language: str) -> str:
    words = _WORDS[language]
    text = words.get(str(claim), str(claim).removeprefix("=="))
    git = f" (git {claim.revision[:18]})" if claim.revision and claim.revision not in (text, f"v{text}") else ""
    of = next((words[each] for each in (claim.npu, claim.arch, claim.engine) if each in words), "")
    return f"{of}{text}{git}"


def _documents(numbers: Mapping[str, int], language: str) -> str:
    return markdown_table(_HEADINGS[language][1], [(str(number), name) for name, number in numbers.items()])


def _contradictions(pins: Mapping[str, Pin], numbers: Mapping[str, int], language: str) -> str:
    rows = [
        (
            f"`{part.value}`",
            f"`{name}`",
            _said(claim, language),
            f"{_name(claim.source)} ({claim.source.revision})",
            claim.note if language == "en" else claim.note_zh,
        )
        for name, cells in _named(pins)
        for part, cell in cells.items()
        for claim in cell.claims
        if claim.note
    ]
    return markdown_table(_HEADINGS[language][2], rows)


if __name__ == "__main__":
    sys.exit(rewrite(made(), options(__doc__).parse_args().check))
