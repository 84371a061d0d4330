"""Results of a proof's stages and checks, as objects and as JSON.

The JSON is not trusted: `Reader` checks the type of every part.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

Item = TypeVar("Item")

LONGEST = 2000
"""The maximum number of characters of a text in a proof."""
_MOST = 20_000
"""The maximum number of items of a list in a proof."""


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

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "found": self.found,
            "expected": self.expected,
            "meaning": self.meaning,
            "seconds": round(self.seconds, 3),
            "figures": dict(self.figures),
        }


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
    waited: float = 0.0
    """The part of `seconds` during which the stage's processes waited for a processor. This time does not count toward
    the limit."""
    checks: tuple[Check, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "cause": self.cause,
            "meaning": self.meaning,
            "seconds": round(self.seconds, 3),
            "limit": round(self.limit, 3),
            "waited": round(self.waited, 3),
            "checks": [check.as_json() for check in self.checks],
        }


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


class Reader:
    """Reads the fields of a JSON object and checks their types. The methods raise a CommandError that names the
    invalid field."""

    def __init__(self, content: object, subject: str, where: str = "") -> None:
        self._subject, self._where = subject, where
        if not isinstance(content, dict):
            raise self._wrong("", _("an object"), content)
        self._content = content

    def text(self, key: str, longest: int = LONGEST) -> str:
        found = self._content.get(key)
        if not isinstance(found, str) or len(found) > longest:
            raise self._wrong(key, _("a text of at most {count} characters").format(count=longest), found)
        return found

    def number(self, key: str) -> float:
        found = self._content.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise self._wrong(key, _("a number"), found)
        return float(found)

    def numbers(self, key: str) -> dict[str, float]:
        found = self._content.get(key)
        if not isinstance(found, dict) or len(found) > _MOST:
            raise self._wrong(key, _("numbers by name"), found)
        inner = Reader(found, self._subject, self._place(key))
        return {self._name(name): inner.number(name) for name in found}

    def texts(self, key: str) -> dict[str, str]:
        found = self._content.get(key)
        if not isinstance(found, dict) or len(found) > _MOST:
            raise self._wrong(key, _("texts by name"), found)
        inner = Reader(found, self._subject, self._place(key))
        return {self._name(name): inner.text(name) for name in found}

    def each(self, key: str, read: Callable[[Reader], Item]) -> tuple[Item, ...]:
        found = self._content.get(key)
        if not isinstance(found, list) or len(found) > _MOST:
            raise self._wrong(key, _("a list of at most {count} parts").format(count=_MOST), found)
        return tuple(
            read(Reader(part, self._subject, f"{self._place(key)}[{place}]")) for place, part in enumerate(found)
        )

    def inner(self, key: str) -> Reader:
        """Return a reader of an inner object."""
        return Reader(self._content.get(key), self._subject, self._place(key))

    def verdict(self, key: str) -> Verdict:
        found = self._content.get(key)
        known = {each.value: each for each in Verdict}
        if not isinstance(found, str) or found not in known:
            raise self._wrong(key, _("one of {names}").format(names=_(", ").join(known)), found)
        return known[found]

    def raw(self) -> Mapping[str, object]:
        """Return the underlying JSON object. The types of its fields are not checked."""
        return self._content

    def wrong(self, key: str, expected: str) -> CommandError:
        """Return an error that names the invalid field and the expected value."""
        return self._wrong(key, expected, self._content.get(key))

    def _name(self, name: str) -> str:
        if len(name) > LONGEST:
            raise self._wrong("", _("names of at most {count} characters").format(count=LONGEST), name)
        return name

    def _place(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where and key else key or self._where

    def _wrong(self, key: str, expected: str, found: object) -> CommandError:
        shown = repr(found)
        return CommandError(
            subject=self._subject,
            expected=_("{part} to be {expected}").format(part=self._place(key) or _("the whole"), expected=expected),
            found=_("nothing") if found is None else shown if len(shown) <= 60 else f"{shown[:60]}…",
            fix=_("ask the sender for a new file: this file is damaged or from another version of verl-npu"),
        )


def check_of(said: Reader) -> Check:
    """Create a check from JSON."""
    return Check(
        name=said.text("name"),
        verdict=said.verdict("verdict"),
        found=said.text("found"),
        expected=said.text("expected"),
        meaning=said.text("meaning"),
        seconds=said.number("seconds"),
        figures=said.numbers("figures"),
    )


def stage_of(said: Reader) -> StageResult:
    """Create a stage's result from JSON."""
    return StageResult(
        name=said.text("name"),
        verdict=said.verdict("verdict"),
        cause=said.text("cause"),
        meaning=said.text("meaning"),
        seconds=said.number("seconds"),
        limit=said.number("limit"),
        waited=said.number("waited") if "waited" in said.raw() else 0.0,
        checks=said.each("checks", check_of),
    )
