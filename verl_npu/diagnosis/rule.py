"""What a rule is: a text that a failed job writes, what it means, and what to do."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Match", "Precision", "Rule", "rule"]


class Precision(enum.IntEnum):
    """How much the text tells, the most first."""

    OWN = 0
    """An error of verl-npu: it says itself what to do."""
    EXACT = 1
    """The text names one cause."""
    SYMPTOM = 2
    """Another process failed, or is late: the cause is there."""
    CODE = 3
    """A code that has many causes; it is a hint only."""
    HINT = 4
    """It ends no job; it is worth knowing beside what did."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One problem that is known by its text."""

    name: str
    precision: Precision
    pattern: re.Pattern[str]
    """It is searched in the message of an error, whose lines are joined by line breaks. Named groups can be used in
    `means` and `fix`."""
    means: str
    fix: str
    seen: tuple[str, ...]
    """Where the text was seen, or is documented: `owner/repository#issue`, a document, or a file of a release."""
    anywhere: bool = False
    """The text tells by itself, outside of a traceback too."""


@dataclass(frozen=True, slots=True)
class Match:
    """A rule, and what it says of one text."""

    rule: Rule
    means: str
    fix: str

    @classmethod
    def of(cls, rule: Rule, text: str) -> Match | None:
        """Return what a rule says of a text, or None if it does not match."""
        found = rule.pattern.search(text)
        if found is None:
            return None
        groups = found.groupdict()
        return cls(rule, _filled(rule.means, groups), _filled(rule.fix, groups))


def _filled(said: str, groups: Mapping[str, str | None]) -> str:
    """A sentence with what a text says; a remark in parentheses is left out if the text does not say it."""
    for key, value in groups.items():
        field = f"{{{key}}}"
        if not value:
            said = re.sub(rf" \([^()]*{re.escape(field)}[^()]*\)", "", said)
        # str.format would take the braces of a quoted dictionary for fields.
        said = said.replace(field, value or "what it names")
    return said


def rule(
    name: str,
    precision: Precision,
    pattern: str,
    *,
    means: str,
    fix: str,
    seen: tuple[str, ...],
    anywhere: bool = False,
) -> Rule:
    """Make a rule from the text of its pattern."""
    return Rule(name, precision, re.compile(pattern), means, fix, seen, anywhere)
