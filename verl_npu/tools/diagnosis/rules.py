"""What failed jobs write, what it means, and what to do: one row for each problem, in the JSON files of `known/`.

The fields of a row:

    code       the rule's name, in reports and in JSON
    precision  one of Precision's, in small letters
    pattern    a regular expression, or several of which one has to match
    means      the cause; named groups of the pattern can be used here and in `fix`
    fix        what to do
    seen       where the text was seen, or is documented: `owner/repository#issue`, a document, a file of a release
    anywhere   true: the text tells by itself, outside of a traceback too
    note       what the author of the next rule should know
    quotes     what jobs wrote, each with its source: the tests ask for the rule that names it. `form` says what stood
               around the text: `raised` is a traceback, `worker` Ray's prefix of the process `pid`
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...findings import Finding, Severity

__all__ = ["KNOWN", "RULES", "LogRule", "Precision", "read_rules"]

KNOWN = Path(__file__).with_name("known")
_SUBJECTS = (
    "own",
    "placement",
    "communication",
    "memory",
    "installation",
    "attention",
    "engines",
    "megatron",
    "settings",
    "devices",
    "vague",
)
"""The more telling first: where two rules of one precision match, the first one counts."""


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
class LogRule:
    """One problem that is known by its text."""

    code: str
    precision: Precision
    alternatives: tuple[str, ...]
    """Of the pattern, each by itself: most begin with a fixed text, which Python finds without trying every place."""
    pattern: re.Pattern[str]
    """It is searched in the message of an error, whose lines are joined by line breaks."""
    means: str
    fix: str
    seen: tuple[str, ...]
    anywhere: bool = False

    def ask(self, text: str) -> Finding | None:
        """Return what the rule says of a text, or None if it does not match."""
        matched = self.pattern.search(text)
        if matched is None:
            return None
        groups = matched.groupdict()
        return Finding(
            code=self.code,
            severity=Severity.WARNING if self.precision is Precision.HINT else Severity.ERROR,
            found=matched[0],
            why=_filled(self.means, groups),
            fix=_filled(self.fix, groups),
            source=self.seen,
        )


def _filled(said: str, groups: Mapping[str, str | None]) -> str:
    """A sentence with what a text says; a remark in parentheses is left out if the text does not say it."""
    for key, value in groups.items():
        field = f"{{{key}}}"
        if not value:
            said = re.sub(rf" \([^()]*{re.escape(field)}[^()]*\)", "", said)
        # str.format would take the braces of a quoted dictionary for fields.
        said = said.replace(field, value or "what it names")
    return said


def read_rules(folder: Path = KNOWN) -> tuple[LogRule, ...]:
    """Read the rows of all subjects."""
    rules = []
    for subject in _SUBJECTS:
        for row in json.loads((folder / f"{subject}.json").read_text(encoding="utf-8"))["rules"]:
            pattern = row["pattern"]
            alternatives = (pattern,) if isinstance(pattern, str) else tuple(pattern)
            rules.append(
                LogRule(
                    code=row["code"],
                    precision=Precision[row["precision"].upper()],
                    alternatives=alternatives,
                    pattern=re.compile("|".join(alternatives)),
                    means=row["means"],
                    fix=row["fix"],
                    seen=tuple(row["seen"]),
                    anywhere=row.get("anywhere", False),
                )
            )
    return tuple(rules)


RULES = read_rules()
