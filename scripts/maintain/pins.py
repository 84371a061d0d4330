"""Makes of the files in pins/ all that says something of a pin: run it when one of them was changed or is new.

    python scripts/maintain/pins.py            write what is made
    python scripts/maintain/pins.py --check    status 1 if something is not up to date

Made are verl_npu/pins.json, which the package and the scripts read, the tables of versions in the workbench's
docs/doctor.md, those of pins in the READMEs, the jobs of .github/workflows/smoke.yml and the checkouts of nightly.yml.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The scripts are no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

from verl_npu.pins import Cell, Claim, Component, Pin, Source, pins_of

__all__ = ["BadPin", "as_json", "made", "read", "render"]

PROJECT = Path(__file__).resolve().parents[2]
JSON = PROJECT / "verl_npu" / "pins.json"
WORKFLOWS = PROJECT / ".github" / "workflows"
WORKBENCH = PROJECT / "packages" / "verl-npu-workbench" / "docs"
DOCTOR = {"en": WORKBENCH / "doctor.md", "zh": WORKBENCH / "doctor.zh-CN.md"}
READMES = {"en": PROJECT / "README.md", "zh": PROJECT / "README.zh-CN.md"}
BEGIN = "<!-- {table}: made by scripts/maintain/pins.py -->"
END = "<!-- end of {table} -->"
TABLES = ("versions", "documents", "contradictions")
_YAML_BEGIN = "# Made by scripts/maintain/pins.py from pins/*.toml."
_YAML_END = "# End of what is made."

_KEYS = {
    "": "commit version version_in_git released recipes nightly_checkout engines mindspeed seen training smoke "
    "environment",
    "training": "jobs transformers torch ray_init sft virtual_rollout reward megatron_core small requirements engine",
    "smoke": "job transformers torch_npu rollout mindspeed",
    "environment": "id source like revision images documents versions published",
}
"""What a pin's file may say, by its table."""

_HEADINGS = {
    "en": ("part", ("number", "document"), ("part", "pin", "what it says", "document", "note")),
    "zh": ("组件", ("编号", "文档"), ("组件", "版本", "说法", "文档", "说明")),
}
_WORDS = {
    "en": {"": "", "vllm": "", "sglang": "SGLang: ", "a5": "A5: ", "any version": "any", "not supported": "none"},
    "zh": {"": "", "vllm": "", "sglang": "SGLang：", "a5": "A5：", "any version": "任意", "not supported": "不支持"},
}
_SEEN = {"en": ("pin", "from", "seen on virtual NPUs"), "zh": ("pin", "来源", "在虚拟 NPU 上看到的")}


class BadPin(Exception):
    """A pin's file says what nobody reads, or names what is not there."""


def read(folder: Path = PROJECT / "pins") -> dict[str, dict[str, Any]]:
    """Return what the files say, by the pin's name, oldest first, each complete by itself. Raises BadPin."""
    said = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.toml")}
    for name, pin in said.items():
        for table, keys in _KEYS.items():
            entries = [pin] if not table else pin[table] if isinstance(pin[table], list) else [pin[table]]
            unknown = {key for entry in entries for key in entry} - {*keys.split()}
            if unknown:
                where = f"pins/{name}.toml: {table or 'top level'}"
                raise BadPin(f"{where}: expected some of {keys}, found {', '.join(sorted(unknown))}")
    ordered = sorted(said, key=lambda name: Version(said[name]["version"]))
    return {name: said[name] | {"environment": [*_environments(name, said)]} for name in ordered}


def _environments(name: str, said: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for own in said[name]["environment"]:
        like = own.get("like", name)
        alike = [each for each in said.get(like, {}).get("environment", ()) if each["id"] == own["id"]]
        if not alike or ("like" in alike[0] and like != name):
            raise BadPin(f"pins/{name}.toml: expected `like` to name a pin with an environment {own['id']} of its own")
        revision = own.get("revision", name)
        documents = {
            key: {"project": "verl", "revision": revision} | document
            for key, document in alike[0].get("documents", {}).items()
        }
        yield {
            "id": own["id"],
            "source": alike[0]["source"],
            "documents": documents,
            "versions": alike[0]["versions"],
            "images": [{"revision": revision} | image for image in alike[0].get("images", ())],
            **({"published": True} if alike[0].get("published") else {}),
        }


def as_json(pins: Mapping[str, Mapping[str, Any]]) -> str:
    """Return them as the package reads them: a line for each key of each pin, so that a difference can be read."""
    lines = []
    for name, pin in pins.items():
        keys = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in pin.items())
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(keys) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def made() -> dict[Path, str]:
    """Return all files that are made, whole. Raises BadPin, and ValueError if a marker is missing."""
    pins = read()
    found = {JSON: as_json(pins)}
    for language, page in DOCTOR.items():
        found[page] = render(page.read_text(), language, pins_of(pins))
    for language, page in READMES.items():
        rows = [
            (f"`{name}`", "PyPI" if pin["released"] else "git", pin["seen"][language]) for name, pin in pins.items()
        ]
        content = _table(_SEEN[language], rows)
        found[page] = replaced(page.read_text(), BEGIN.format(table="pins"), END.format(table="pins"), content)
    for page, lines in (("smoke.yml", _smoke(pins)), ("nightly.yml", _checkouts(pins))):
        path = WORKFLOWS / page
        begin, end = (_marker(path.read_text(), marker) for marker in (_YAML_BEGIN, _YAML_END))
        found[path] = replaced(path.read_text(), begin, end, "\n".join(lines))
    return found


def _marker(text: str, marker: str) -> str:
    """Return a marker's whole line."""
    return next((line for line in text.splitlines() if line.strip() == marker), marker)


def _smoke(pins: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, pin in pins.items():
        for row in pin["smoke"]:
            source = {} if pin["released"] else {"commit": pin["commit"]}
            built = pin["training"].get("engine", {}).get("commit") if "rollout" in row else None
            asked = {"pin": name, "job": row["job"], **source, **row, **({"engine": built} if built else {})}
            yield f"          - {{ {', '.join(f'{key}: {value}' for key, value in asked.items())} }}"


def _checkouts(pins: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, pin in pins.items():
        if pin["nightly_checkout"]:
            yield "      - uses: actions/checkout@v4"
            yield "        with:"
            yield "          repository: verl-project/verl"
            yield f"          ref: {pin['commit']}"
            yield f"          path: upstreams/verl-{name}"


def render(text: str, language: str, pins: Mapping[str, Pin]) -> str:
    """Return the text of a page with its tables made anew. Raises ValueError if a marker is missing."""
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
    return _table((_HEADINGS[language][0], *(f"`{name}`" for name, _ in named)), rows)


def _named(pins: Mapping[str, Pin]) -> Iterator[tuple[str, Mapping[Component, Cell]]]:
    """Each environment of each pin, by the name that commands print."""
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
    return f"{words[claim.npu] or words[claim.engine]}{text}{git}"


def _documents(numbers: Mapping[str, int], language: str) -> str:
    return _table(_HEADINGS[language][1], [(str(number), name) for name, number in numbers.items()])


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
    return _table(_HEADINGS[language][2], rows)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))


if __name__ == "__main__":
    sys.exit(rewrite(made(), options(__doc__).parse_args().check))
