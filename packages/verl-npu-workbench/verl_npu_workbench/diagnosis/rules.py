"""The rules that recognize the error messages of failed jobs. The JSON files in `known/` have a row for each problem.

The fields of a row:

    code       the rule's name, in reports and in JSON
    precision  the name of a Precision, in small letters
    pattern    a regular expression, or several of which one must match; `@NAME` stands for the list of that name in
               the file's `texts`
    likely     texts that have other causes, too, so that this cause is only the likeliest; they need no frame
    beside     a regular expression that must match as well
    means      the cause; named groups of the pattern may be used here and in `fix`
    fix        what to do
    seen       where the text was seen or is documented: `owner/repository#issue`, a document, a file of a release
    raised_in  a regular expression that one of the last frames of the traceback must match
    owner      one or several names of Owner, in small letters: whose code must have raised the error
    family     the code of a kind of cause (causes.json), or of a rule, that this cause belongs to; several if a code
               has candidates, the likeliest first
    versions   the affected versions
    before     our command that finds the problem before the run
    anywhere   true if the text counts outside a traceback, too
    note       a remark for the author of the next rule
    quotes     texts that jobs wrote, each with its source; the tests check that this rule matches them. `form` says
               what surrounded the text: `raised` is a traceback, `worker` is Ray's prefix of the process `pid`
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
"""Explanations of kinds of causes that have no rule of their own, by code. Errors refer to them as likely causes."""
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
"""The names of the rule files, files with more precise rules first. If two rules with the same precision match, the
earlier one counts."""
_FIELD = re.compile(r"\{([a-z_]{1,40})\}")
"""A placeholder in a rule's sentence. It is filled with text from the log."""


class Precision(enum.IntEnum):
    """How precisely an error message identifies the cause. A lower number means a more precise message."""

    OWN = 0
    """An error that verl-npu raised itself. Its text includes the fix."""
    EXACT = 1
    """The text has only one possible cause: it names a frame, a file, or words that only one package uses."""
    SYMPTOM = 2
    """Another process failed or is late, and the cause is there."""
    CODE = 3
    """An error code that has many causes, so it is only a hint."""
    ECHO = 4
    """This process only reports that another process has ended. Any other consequence is more informative."""
    HINT = 5
    """A message that does not end a job but that helps to understand the error that did."""
    GUESS = 6
    """An unknown error. Only its kind, the owner of the code, and possible causes are given."""


@dataclass(frozen=True, slots=True)
class LogRule(Rule[str]):
    """A rule for one problem. It is matched against the text of an error: the message's lines, joined by line
    breaks."""

    precision: Precision
    alternatives: tuple[str, ...]
    """The alternatives of the pattern. Most begin with literal text, so it is fast to search for them one by one."""
    pattern: re.Pattern[str]
    seen: tuple[str, ...]
    anywhere: bool
    means: str
    """The cause, with groups of the pattern in braces."""
    fix: str
    """The fix, with groups of the pattern in braces."""
    raised_in: re.Pattern[str] | None = None
    """A pattern that one of the last frames must match."""
    beside: re.Pattern[str] | None = None
    """A pattern that the text must match as well."""
    owners: tuple[Owner, ...] = ()
    """The owners whose code must have raised the error; empty if that does not matter."""
    families: tuple[str, ...] = ()
    """The codes of the kinds of causes that this cause belongs to, the likeliest first."""
    versions: str = ""
    """The affected versions; empty if all known versions are affected."""
    before: str = ""
    """The verl-npu command that finds the problem before the run."""
    quotes: tuple[str, ...] = ()
    """Error messages from real jobs that this rule must match."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The codes of the likely causes, the likeliest first, or an empty tuple if the rule itself names the
        cause."""
        return self.families if self.precision in (Precision.CODE, Precision.GUESS) else ()


def _filled(said: str, groups: Mapping[str, str | None]) -> str:
    """Fill a rule's message template with the groups that the pattern found. A remark in parentheses is omitted if its
    group is empty."""
    for key, value in groups.items():
        field = f"{{{key}}}"
        if not value:
            said = re.sub(rf" \([^()]*{re.escape(field)}[^()]*\)|（[^（）]*{re.escape(field)}[^（）]*）", "", said)
        # str.format would take the braces of a quoted dictionary for fields.
        said = said.replace(field, value or translate(_("(named in the message)")))
    return said


class _Filled(Message):
    """A rule's message template with the values from the log. The template is translated first and filled
    afterwards."""

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
    """Return a rule's message template with an ellipsis instead of each value from the log."""
    return _Filled.by(words, dict.fromkeys(_FIELD.findall(words), "…"))


def read_rules(folder: Path = KNOWN) -> tuple[LogRule, ...]:
    """Read the rules from all files."""
    files = [json.loads((folder / f"{subject}.json").read_text(encoding="utf-8")) for subject in _SUBJECTS]
    return tuple(
        _rule(row, file.get("texts", {})) for file in files for each in file["rules"] for row in _halves(each)
    )


def _halves(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the row, and a second row if it has texts (`likely`) that make its cause only likely."""
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
"""The first rule of each code. If a code has two rules, this is the rule that makes the cause certain."""
for _rule_of_a_code in RULES:
    BY_CODE.setdefault(_rule_of_a_code.code, _rule_of_a_code)
