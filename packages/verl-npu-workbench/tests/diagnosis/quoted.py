"""Quotes of failed jobs from the rules' rows, each with its source and the rule that has to name it.

Paths, addresses and process numbers are made up; the texts come from the named issues, documents and sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from verl_npu_workbench.diagnosis.rules import KNOWN


@dataclass(frozen=True)
class Quoted:
    """A piece of a log."""

    rule: str
    source: str
    text: str
    pid: str
    """The process in which the error began, where the text says so."""


def raised(error: str, file: str = "/opt/verl/verl/workers/fsdp_workers.py") -> str:
    """Return a traceback that ends with an error."""
    return (
        f'Traceback (most recent call last):\n  File "{file}", line 12, in init_model\n    self.build()\n'
        f"    ^^^^^^^^^^^^\n{error}"
    )


def worker(text: str, pid: str = "4711") -> str:
    """Return a worker's text as Ray shows it, in its colors."""
    return "\n".join(f"\x1b[36m(WorkerDict pid={pid}, ip=10.0.0.2)\x1b[0m {line}" for line in text.splitlines())


def _quoted() -> Iterator[Quoted]:
    for file in sorted(KNOWN.glob("*.json")):
        for row in json.loads(file.read_text())["rules"]:
            for quote in row.get("quotes", ()):
                text, form, pid = quote["text"], quote.get("form", ""), quote.get("pid", "")
                text = text if isinstance(text, str) else "\n".join(text)
                text = raised(text) if "raised" in form else text
                yield Quoted(row["code"], quote["source"], worker(text, pid) if "worker" in form else text, pid)


QUOTED = tuple(_quoted())
