"""Reads the records of runs in docs/records/*.json, and makes tables of them. site_pages.py writes these tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON.

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import markdown_table

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "records"
_FIELDS = ("date", "pin", "job", "command", "simulated", "results")
_COMMON = ("date", "pin", "command", "simulated")
_WORDS = {
    "en": {"date": "date", "pin": "pin", "job": "run", "command": "command", "simulated": "how", "remark": "remark"},
    "zh": {"date": "日期", "pin": "pin", "job": "运行", "command": "命令", "simulated": "方式", "remark": "备注"},
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run, and its outcome."""

    date: str
    """Empty if it was not recorded."""
    pin: str
    job: str
    command: str
    simulated: str
    """The stand-in for real NPUs, and the differences from a real run."""
    results: Mapping[str, str]
    remark: str


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one file."""

    title: str
    title_zh: str
    runs: tuple[Run, ...]


def read(path: Path) -> Group:
    """Read one file; raise ValueError if a run lacks a field or has an unknown one."""
    content = json.loads(path.read_text(encoding="utf-8"))
    runs = tuple(_run({**content["common"], **one}, path) for one in content["runs"])
    return Group(content["title"], content["title_zh"], runs)


def _run(fields: Mapping[str, Any], path: Path) -> Run:
    missing = [name for name in _FIELDS if name not in fields]
    unknown = [name for name in fields if name not in (*_FIELDS, "remark")]
    remark = fields.get("remark", "")
    if missing or unknown or "\n" in remark:
        raise ValueError(
            f"{path.name}: {fields.get('job')}: expected {', '.join(_FIELDS)} and a remark of one line, "
            f"found {', '.join(fields)}"
        )
    return Run(*(fields[name] for name in _FIELDS), remark)


def tables(language: str) -> str:
    """Return all records as sections in Markdown. Facts that all runs of a section share are above its table."""
    return "".join(_section(read(path), language) for path in sorted(RECORDS.glob("*.json")))


def _section(group: Group, language: str) -> str:
    words = _WORDS[language]
    shared = [name for name in _COMMON if len({getattr(run, name) for run in group.runs}) == 1]
    separate = [name for name in _COMMON if name not in shared]
    results = list(dict.fromkeys(key for run in group.runs for key in run.results))
    remarks = ["remark"] if any(run.remark for run in group.runs) else []
    colon = {"en": ": ", "zh": "："}[language]
    said = [(words[name], _code(name, getattr(group.runs[0], name))) for name in shared]
    head = "; ".join(f"{word}{colon}{text}" for word, text in said if text)
    rows = [
        [run.job, *(_code(name, getattr(run, name)) for name in separate)]
        + [run.results.get(key, "") for key in results]
        + ([run.remark] if remarks else [])
        for run in group.runs
    ]
    headings = [words["job"], *(words[name] for name in separate), *results, *(words[name] for name in remarks)]
    cells = [[_cell(text) for text in row] for row in rows]
    title = {"en": group.title, "zh": group.title_zh}[language]
    return "\n".join(["", f"## {title}", "", *([head, ""] if head else []), markdown_table(headings, cells), ""])


def _code(field: str, text: str) -> str:
    return f"`{text}`" if field == "command" and text else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "-"
