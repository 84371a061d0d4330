"""Why tests of torch_npu do not pass on the virtual Ascend: rules, the first that fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Kind", "Reason", "reason"]


class Kind(Enum):
    """What a failure is about."""

    NAMED = "not implemented"  # raises with its name
    TORCH = "another torch"  # the test is written for other versions of torch
    CHIP = "a real NPU"  # its chips, CANN, files and tools
    DETAIL = "a detail"  # runs otherwise than in torch_npu, and is not taken for wrong
    TESTS = "the tests themselves"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why."""

    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    """`test` is searched in file::test, `said` in what the test said; groups of `said` may stand in `why`."""

    kind: Kind
    why: str
    said: str = ""
    test: str = ""


RULES = (
    Rule(
        Kind.NAMED, "operators that are not written", r"torch_npu\.(_?npu_\w+|\w+_?) is not implemented by the virtual"
    ),
)


def reason(file: str, test: str, said: str) -> Reason | None:
    """The reason of one failure; None where no rule fits."""
    for rule in RULES:
        if re.search(rule.test, f"{file}::{test}") and (match := re.search(rule.said, said)):
            return Reason(rule.kind, match.expand(rule.why))
    return None
