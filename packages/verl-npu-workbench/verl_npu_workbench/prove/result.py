"""Results of a proof's stages and checks."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .content import ADDED_LATER, LONGEST


class Verdict(enum.Enum):
    """The result of a check or a stage."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Verdict
    found: str = ""
    """A description of the result, or the reason why the check is not possible here."""
    expected: str = ""
    meaning: str = ""
    """The consequence of a failure for a training run."""
    seconds: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measurements, by name with unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of one stage."""

    name: str
    verdict: Verdict
    cause: str = ""
    meaning: str = ""
    seconds: float = 0.0
    limit: float = 0.0
    """The stage's time limit in seconds."""
    waited: float = field(default=0.0, metadata=ADDED_LATER)
    """The part of `seconds` during which the stage's processes waited for a processor. This time does not count toward
    the limit."""
    checks: tuple[Check, ...] = ()


def judged(
    name: str, checks: Sequence[Check], seconds: float, limit: float, ended: str = "", left_out: str = ""
) -> StageResult:
    """Return a stage's result from its checks.

    Args:
        name: the stage.
        checks: the results of its checks.
        seconds, limit: the duration of the stage, and its time limit.
        ended: how the stage was interrupted, or an empty string if it finished.
        left_out: the reason for the interruption, if the reason is unrelated to the NPUs.
    """
    failed = [check for check in checks if check.verdict is Verdict.FAILED]
    not_made = [check for check in checks if check.verdict is Verdict.NOT_POSSIBLE]
    verdict, cause, meaning = Verdict.PASSED, "", ""
    if ended or failed:
        verdict = Verdict.FAILED
        causes = [f"{check.name}: {check.found}" for check in failed[:3]]
        more = [f"and {len(failed) - 3} more"] if len(failed) > 3 else []
        cause = "; ".join([*filter(None, (ended, left_out)), *causes, *more])
        meaning = next((check.meaning for check in failed if check.meaning), "")
    elif left_out or len(not_made) == len(checks):
        verdict = Verdict.NOT_POSSIBLE
        cause = (
            left_out or "; ".join(dict.fromkeys(check.found for check in not_made)) or "there is nothing to check here"
        )
    return StageResult(
        name=name,
        verdict=verdict,
        cause=cause[:LONGEST],
        meaning=meaning,
        seconds=seconds,
        limit=limit,
        checks=tuple(checks),
    )
