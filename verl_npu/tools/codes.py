"""What the codes mean that the commands and a job's errors print: rules, findings, guards and points of a watch.

A code is stable: it is in reports, in JSON and in scripts of users. One that is given is never given to anything else;
tests/codes.txt has all of them. Where several commands print one, they look at the same thing at different moments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import environment, errors
from ..features.megatron import rules as mindspeed
from ..features.rollout import rules as rollout
from ..findings import Rule, Stage
from ..variable import USER
from . import watch
from .diagnosis.rules import CAUSES, LogRule
from .diagnosis.rules import RULES as OF_LOGS
from .doctor.examination import SUBJECTS, Subject
from .doctor.variables import RULES as OF_VARIABLES
from .jobs.rules import RULES as OF_SCRIPTS

_CHECK, _DOCTOR = "`verl-npu check --script RUN.SH`", "`verl-npu doctor`"
_JOB = "the job itself, when it starts"
_GROUP = re.compile(r"\{[a-z_]{1,40}\}")
"""What a rule fills in from a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What one code means, where one of the commands prints it."""

    code: str
    said_by: str
    """When, and by which command."""
    rows: Mapping[str, str]
    """What there is to know of it, by a word for each; none is empty."""


def meanings() -> dict[str, list[Meaning]]:
    """Return all codes, each with what it means in the order of the moments in which it is printed."""
    found: dict[str, list[Meaning]] = {}
    for each in (*_of_scripts(), *_of_the_doctor(), *_of_guards(), *_of_watch(), *_of_logs(), *_of_errors()):
        found.setdefault(each.code, []).append(each)
    return found


def _meaning(code: str, said_by: str, **rows: str) -> Meaning:
    return Meaning(
        code=code, said_by=said_by, rows={label.replace("_", " "): text for label, text in rows.items() if text}
    )


def _of_scripts() -> Iterator[Meaning]:
    yield _meaning(
        "hydra",
        f"before a run: {_CHECK}",
        about="Hydra composes the settings that a script gives its trainer as the job does, and has ended with an "
        "error: the job ends with the same one before anything starts.",
    )
    for rule in OF_SCRIPTS:
        # What is only handed on says nothing of itself: the guards tell.
        if rule.about:
            also = f", and {_JOB}" if Stage.JOB in rule.stages else ""
            yield _meaning(rule.code, f"before a run: {_CHECK}{also}", about=rule.about)


def _of_the_doctor() -> Iterator[Meaning]:
    for subject in SUBJECTS:
        yield _of_a_subject(subject, subject.code)
        for part in subject.parts if subject.code != "variables" else ():
            yield _of_a_subject(subject, part)
    for rule in OF_VARIABLES:
        by = f"before a run: {_DOCTOR}" + (f" and {_CHECK}" if Stage.SCRIPT in rule.stages else "")
        yield _meaning(rule.name, by, expected=rule.expected, otherwise=rule.why, a_value_that_works=rule.value)
    for variable in environment.VARIABLES.values():
        if variable.audience == USER:
            yield _meaning(
                variable.name,
                f"before a run: {_DOCTOR}, `verl-npu check` and {_CHECK}; and what reads it",
                about=f"{variable.summary[:1].upper()}{variable.summary[1:]}.",
                expected=variable.expected,
                default=variable.default,
            )


def _of_a_subject(subject: Subject, code: str) -> Meaning:
    level = "" if subject.level.value == "static" else f" --level {subject.level.value}"
    return _meaning(
        code,
        f"before a run: `verl-npu doctor{level}`",
        about=subject.about,
        alone=f"verl-npu doctor{level} --only {code}",
    )


def _of_guards() -> Iterator[Meaning]:
    asked = {rule.code for rule in OF_SCRIPTS}
    for rule in rollout.RULES:
        before = f"before a run: {_CHECK}; and " if rule.code in asked else ""
        yield _meaning(rule.code, before + _JOB, about=rule.about)
    guards: tuple[Rule[mindspeed.Asked], ...] = mindspeed.RULES
    for guard in guards:
        yield _meaning(
            guard.code,
            f"before a run: `verl-npu mindspeed --check TEXT` and {_CHECK}; and {_JOB}",
            about=guard.about,
        )


def _of_watch() -> Iterator[Meaning]:
    for kind, about in watch.ABOUT.items():
        yield _meaning(kind.value, "while it runs: `verl-npu watch LOG`", about=about)


def _of_logs() -> Iterator[Meaning]:
    for rule in OF_LOGS:
        yield _of_a_log(rule)
    for code, means in CAUSES.items():
        yield _meaning(
            code,
            "after a run: `verl-npu doctor --log LOG`, among what an error may come of",
            it_means=f"{means[:1].upper()}{means[1:]}.",
        )


def _of_a_log(rule: LogRule) -> Meaning:
    return _meaning(
        rule.code,
        "after a run: `verl-npu doctor --log LOG`",
        a_log_has=" ".join(rule.quotes[0].split()) if rule.quotes else "",
        it_means=f"{_GROUP.sub('…', rule.means)}.",
        likely=", ".join(rule.candidates),
        to_do=f"{_GROUP.sub('…', rule.fix)}.",
        so_in=rule.versions,
        told_before_by=f"`{rule.before}`" if rule.before else "",
        seen_in=", ".join(rule.seen),
    )


def _of_errors() -> Iterator[Meaning]:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.VerlNpuError):
            yield _meaning(
                kind.__name__,
                "an error of verl-npu, in a job or from a command",
                about=" ".join((kind.__doc__ or "").split()),
                caught_as=f"verl_npu.errors.{kind.__name__}",
            )
