"""What failed jobs write, what it means, and what to do: one row for each problem, in the JSON files of `known/`.

The fields of a row:

    code       the rule's name, in reports and in JSON
    precision  one of Precision's, in small letters
    pattern    a regular expression, or several of which one has to match; `@NAME` stands for those of that name in the
               file's `texts`
    likely     texts that others write too, so that the cause is the likeliest one and not certain; they need no frame
    beside     a regular expression that has to match as well
    means      the cause; named groups of the pattern can be used here and in `fix`
    fix        what to do
    seen       where the text was seen, or is documented: `owner/repository#issue`, a document, a file of a release
    raised_in  a regular expression that one of the last frames of the traceback has to match
    owner      whose code it has to be raised in, or several: names of Owner's in small letters
    family     the code of the kind of cause that this cause is one of (causes.json), or of a rule; several if a code
               has candidates, the likeliest first
    versions   between which it is so
    before     the command of ours that says it before the run
    anywhere   true: the text tells by itself, outside of a traceback too
    note       what the author of the next rule should know
    quotes     what jobs wrote, each with its source: the tests ask for the rule that names it. `form` says what stood
               around the text: `raised` is a traceback, `worker` Ray's prefix of the process `pid`
"""

from __future__ import annotations

import enum
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_npu.findings import Finding, Rule, Severity, Stage
from verl_npu.language import Message, translate
from verl_npu.language import gettext as _

from .owner import Owner

if TYPE_CHECKING:
    from verl_npu.language import Catalogue

KNOWN = Path(__file__).with_name("known")
CAUSES: Mapping[str, str] = json.loads(Path(__file__).with_name("causes.json").read_text(encoding="utf-8"))
"""Kinds of causes for which there is no rule, by their code: what a code may come of, with what it means."""
_SUBJECTS = (
    "own",
    "ends",
    "placement",
    "communication",
    "memory",
    "installation",
    "attention",
    "engines",
    "megatron",
    "verl",
    "settings",
    "devices",
    "packages",
    "vague",
    "mistakes",
)
"""The more telling first: where two rules of one precision match, the first one counts."""
_FIELD = re.compile(r"\{([a-z_]{1,40})\}")
"""What a sentence of a rule takes from a log."""


class Precision(enum.IntEnum):
    """How much the text tells, the most first."""

    OWN = 0
    """An error of verl-npu: it says itself what to do."""
    EXACT = 1
    """The text names one cause, and nobody else writes it: it has a frame, a file or words of its own package."""
    SYMPTOM = 2
    """Another process failed, or is late: the cause is there."""
    CODE = 3
    """A code that has many causes; it is a hint only."""
    ECHO = 4
    """Another process ended, and this one says no more than that: any other consequence tells more."""
    HINT = 5
    """It ends no job; it is worth knowing beside what did."""
    GUESS = 6
    """What kind of error it is and whose code raised it, and no more: an error that is not known, with candidates."""


@dataclass(frozen=True, slots=True)
class LogRule(Rule[str]):
    """One problem that is known by its text: that of an error's message, its lines joined by line breaks."""

    precision: Precision
    alternatives: tuple[str, ...]
    """Of the pattern, each by itself: most begin with a fixed text, which Python finds without trying every place."""
    pattern: re.Pattern[str]
    seen: tuple[str, ...]
    anywhere: bool
    means: str
    """The cause; groups of the pattern in braces."""
    fix: str
    """What to do, in the same way."""
    raised_in: re.Pattern[str] | None = None
    """What one of the last frames has to match."""
    beside: re.Pattern[str] | None = None
    """What the text has to match as well."""
    owners: tuple[Owner, ...] = ()
    """Whose code it has to be raised in; empty if that does not matter."""
    families: tuple[str, ...] = ()
    """The kind of cause that it is one of, by its code; a code may have several, the likeliest first."""
    versions: str = ""
    """Between which it is so; empty if it is so in all that are known."""
    before: str = ""
    """The command of ours that says it before the run."""
    quotes: tuple[str, ...] = ()
    """What jobs wrote of it."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """What an error may come of, the likeliest first; nothing for a rule that names its cause."""
        return self.families if self.precision in (Precision.CODE, Precision.GUESS) else ()


def _filled(said: str, groups: Mapping[str, str | None]) -> str:
    """A sentence with what a text says; a remark in parentheses is left out if the text does not say it."""
    for key, value in groups.items():
        field = f"{{{key}}}"
        if not value:
            said = re.sub(rf" \([^()]*{re.escape(field)}[^()]*\)|（[^（）]*{re.escape(field)}[^（）]*）", "", said)
        # str.format would take the braces of a quoted dictionary for fields.
        said = said.replace(field, value or translate(_("what it names")))
    return said


class _Filled(Message):
    """A sentence of a rule with what a text says, translated by the sentence as the rule has it."""

    __slots__ = ("_groups",)
    _groups: Mapping[str, str | None]

    @classmethod
    def by(cls, words: str, groups: Mapping[str, str | None]) -> str:
        made = cls(_filled(words, groups))
        made._words, made._groups = words, groups
        return made

    def said_in(self, catalogue: Catalogue) -> str:
        return _filled(catalogue.gettext(self._words), self._groups)


def unfilled(words: str) -> str:
    """Return a sentence of a rule with dots for what it takes from a log."""
    return _Filled.by(words, dict.fromkeys(_FIELD.findall(words), "…"))


def read_rules(folder: Path = KNOWN) -> tuple[LogRule, ...]:
    """Read the rows of all subjects."""
    files = [json.loads((folder / f"{subject}.json").read_text(encoding="utf-8")) for subject in _SUBJECTS]
    return tuple(
        _rule(row, file.get("texts", {})) for file in files for each in file["rules"] for row in _halves(each)
    )


def _halves(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A row, and what it says by the texts from which its cause is likely only."""
    yield row
    if "likely" in row:
        kept = {
            key: row[key] for key in ("code", "means", "fix", "seen", "anywhere", "versions", "before") if key in row
        }
        families = [row["code"], *_several(row.get("family", ()))]
        yield {**kept, "precision": "code", "pattern": row["likely"], "family": families}


def _rule(row: Mapping[str, Any], texts: Mapping[str, Sequence[str]]) -> LogRule:
    named = [texts[each[1:]] if each.startswith("@") else (each,) for each in _several(row["pattern"])]
    alternatives = tuple(itertools.chain.from_iterable(named))
    raised_in, beside = (re.compile(row[key]) if key in row else None for key in ("raised_in", "beside"))
    pattern, precision, seen = (
        re.compile("|".join(alternatives)),
        Precision[row["precision"].upper()],
        tuple(row["seen"]),
    )

    fields: dict[str, str | None] = dict.fromkeys(_FIELD.findall(row["means"] + row["fix"]))

    def ask(text: str) -> Iterator[Finding]:
        matched = pattern.search(text)
        if matched is not None and (beside is None or beside.search(text)):
            groups = fields | matched.groupdict()
            yield Finding(
                code=row["code"],
                severity=Severity.WARNING if precision is Precision.HINT else Severity.ERROR,
                found=matched[0],
                why=_Filled.by(row["means"], groups),
                fix=_Filled.by(row["fix"], groups),
                source=seen,
            )

    return LogRule(
        code=row["code"],
        ask=ask,
        stages=(Stage.LOG,),
        precision=precision,
        alternatives=alternatives,
        pattern=pattern,
        seen=seen,
        anywhere=row.get("anywhere", False),
        means=row["means"],
        fix=row["fix"],
        raised_in=raised_in,
        beside=beside,
        owners=tuple(Owner[name.upper()] for name in _several(row.get("owner", ()))),
        families=_several(row.get("family", ())),
        versions=_(row.get("versions", "")),
        before=row.get("before", ""),
        quotes=tuple(_text(quote["text"]) for quote in row.get("quotes", ())),
    )


def _several(said: str | Sequence[str]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said)


def _text(said: str | list[str]) -> str:
    return said if isinstance(said, str) else "\n".join(said)


RULES = read_rules()
BY_CODE: dict[str, LogRule] = {}
"""Each code's first rule: the one for texts that make its cause certain, if there are two."""
for _rule_of_a_code in RULES:
    BY_CODE.setdefault(_rule_of_a_code.code, _rule_of_a_code)
