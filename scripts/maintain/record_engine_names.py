"""Records which releases of vLLM and vllm-ascend have the names that verl-npu relies on, and writes a table of them.

python scripts/maintain/record_engine_names.py           look them up in VERL_NPU_UPSTREAMS, and write both
python scripts/maintain/record_engine_names.py --check   status 1 if the table does not match the record

The folders are `vllm-v<release>/` with `vllm/`, from the source distributions on PyPI, and `vllm-ascend-v<release>/`
with `vllm_ascend/`, from the tags of github.com/vllm-project/vllm-ascend. Nothing is imported from them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.pins import PINS as INSTALLED
from maintain import sources
from maintain.section import options, replaced, rewrite

from verl_npu.features.engine_names import NAMES, Name, find
from verl_npu.pins import Pin, pins
from verl_npu.registry.source.tree import SourceTree

PROJECT = Path(__file__).resolve().parents[2]
RECORD = PROJECT / "tests" / "features" / "engine_names" / "releases.json"
DOCS = PROJECT / "docs" / "reference"
PAGES = {"en": DOCS / "engine-names.md", "zh": DOCS / "engine-names.zh-CN.md"}
BEGIN = "<!-- names: made by scripts/maintain/record_engine_names.py -->"
END = "<!-- end of names -->"
RELEASES: Mapping[str, Sequence[str]] = {
    "vllm": ("0.7.3", "0.9.1", "0.11.0", "0.13.0", "0.18.0", "0.23.0", "0.25.1"),
    "vllm_ascend": ("0.7.3.post1", "0.9.1", "0.11.0rc1", "0.11.0", "0.13.0", "0.18.0", "0.23.0", "0.25.1rc1"),
}
"""The releases that verl's documents name for the installable pins, and the newest pair that has a tag."""
_HEADINGS = {
    "en": (("pin", "vLLM", "vllm-ascend"), ("name", "package", "releases that have it", "relied on by")),
    "zh": (("版本", "vLLM", "vllm-ascend"), ("名称", "软件包", "具有它的发行版", "使用它的模块")),
}
_ALL = {"en": "all", "zh": "全部"}
_NONE = {"en": "none", "zh": "无"}
_SINCE = {"en": "from {} on", "zh": "自 {} 起"}
_BETWEEN = {"en": "{} to {}", "zh": "{} 至 {}"}

Record = Mapping[str, Mapping[str, Mapping[str, str | None]]]
"""By package and title: the form of a name from a release on, or None if it is missing from that release on."""


def source_of(package: str, release: str) -> SourceTree:
    """Return the source of one release; raise maintain.sources.SourceMissing if it is missing."""
    return SourceTree.at(sources.find(package.replace("_", "-"), f"v{release}"), (package,))


def described(name: Name, tree: SourceTree) -> str | None:
    """Return the place and signature of a name in the source; None if it does not exist."""
    found = find(name, tree)
    return None if found is None else f"{found.place}{found.signature}"


def read(record: Record, name: Name, release: str) -> str | None:
    """Return the recorded form of a name in one of `RELEASES`."""
    said: str | None = None
    for one in RELEASES[name.package]:
        said = record[name.package][name.title].get(one, said)
        if one == release:
            return said
    raise ValueError(f"{release} is not recorded for {name.package}")


def release_of(pin: Pin, package: str) -> str:
    """Return the recorded release that a pin's documents name; raise ValueError if it is not recorded."""
    named = pin.engines[package.replace("_", "-")]
    found = [*SpecifierSet(f"=={named}").filter(RELEASES[package], prereleases=True)]
    if not found:
        raise ValueError(f"{package} {named} of {pin.name} is not recorded")
    return found[-1]


def recorded() -> Record:
    """Look up every name in every release."""
    record: dict[str, dict[str, dict[str, str | None]]] = {}
    for package, releases in RELEASES.items():
        names = [name for name in NAMES if name.package == package]
        changes: dict[str, dict[str, str | None]] = {name.title: {} for name in names}
        last: dict[str, str | None] = {}
        for release in releases:
            tree = source_of(package, release)
            for name in names:
                now = described(name, tree)
                if name.title not in last or last[name.title] != now:
                    changes[name.title][release] = now
                last[name.title] = now
        record[package] = changes
    return record


def render(record: Record, language: str) -> str:
    """Return the two tables: the releases for each pin, and the releases that have each name."""
    of_pins, of_names = _HEADINGS[language]
    lines = [_row(of_pins), _row(["---"] * len(of_pins))]
    for pin in pins().values():
        if pin.name in INSTALLED:
            lines.append(_row([f"`{pin.name}`", *(release_of(pin, package) for package in RELEASES)]))
    lines += ["", _row(of_names), _row(["---"] * len(of_names))]
    lines += [_row([f"`{n.title}`", n.package, _span(record, n, language), _users(n)]) for n in NAMES]
    return "\n".join(lines)


def _span(record: Record, name: Name, language: str) -> str:
    releases = RELEASES[name.package]
    having = [release for release in releases if read(record, name, release) is not None]
    if not having:
        return _NONE[language]
    if len(having) == len(releases):
        return _ALL[language]
    if having[-1] == releases[-1]:
        return _SINCE[language].format(having[0])
    return having[0] if len(having) == 1 else _BETWEEN[language].format(having[0], having[-1])


def _users(name: Name) -> str:
    return ", ".join(dict.fromkeys(f"`{use.partition(':')[0]}`" for use in name.uses))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Write the record and the tables, or check the tables."""
    check = options(__doc__).parse_args().check
    record: Record = json.loads(RECORD.read_text()) if check else recorded()
    if not check:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{RECORD}: {len(NAMES)} names")
    pages = {page: (page.read_text(), render(record, language)) for language, page in PAGES.items()}
    return rewrite({page: replaced(text, BEGIN, END, table) for page, (text, table) in pages.items()}, check)


if __name__ == "__main__":
    sys.exit(main())
