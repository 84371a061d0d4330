"""What failed jobs wrote, each with where it was seen and the rule that has to name it: the quotes of the rules' rows.

Paths, addresses and process numbers are made up; the texts are those of the issues, documents and sources named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from verl_npu_workbench.diagnosis.rules import KNOWN

__all__ = ["QUOTED", "Quoted", "raised", "worker"]


@dataclass(frozen=True)
class Quoted:
    """A piece of a log."""

    rule: str
    source: str
    text: str
    pid: str
    """The process in which it began, where the text says so."""


def raised(error: str, file: str = "/opt/verl/verl/workers/fsdp_workers.py") -> str:
    """A traceback that ends with an error."""
    return (
        f'Traceback (most recent call last):\n  File "{file}", line 12, in init_model\n    self.build()\n'
        f"    ^^^^^^^^^^^^\n{error}"
    )


def worker(text: str, pid: str = "4711") -> str:
    """A text as Ray shows it of a worker, in its colours."""
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
