"""What the codes mean that the commands of the workbench print: rules, findings and points of a watch."""

from __future__ import annotations

from collections.abc import Iterator

from verl_npu.codes import JOB, Meaning, meaning
from verl_npu.features.rollout import rules as rollout
from verl_npu.findings import Stage
from verl_npu.language import gettext as _

from . import (
    translations,  # noqa: F401  # it is imported for what it does
    watch,
)
from .diagnosis.rules import BY_CODE as OF_LOGS
from .diagnosis.rules import CAUSES, LogRule, unfilled
from .doctor.examination import SUBJECTS, Subject
from .doctor.variables import RULES as OF_VARIABLES
from .jobs.rules import RULES as OF_SCRIPTS

_OF_STARTS = {
    "flash-attention-3": "FlashAttention 3 was asked of transformers: there is no such package for NPUs.",
    "rollout-engine": "No rollout engine was named, and the revision's configuration names none either.",
}
"""Codes of rules that are no more: a start finds what they found."""
_LINT, _DOCTOR = "`verl-npu lint RUN.SH`", "`verl-npu doctor`"


def meanings() -> Iterator[Meaning]:
    """Yield what each code of the workbench means; the entry point by which `verl-npu explain` finds them."""
    yield from _of_scripts()
    yield from _of_the_doctor()
    yield from _of_watch()
    yield from _of_logs()


def _of_scripts() -> Iterator[Meaning]:
    yield meaning(
        "hydra",
        f"before a run: {_LINT}",
        about="Hydra composes the settings that a script gives its trainer as the job does, and has ended with an "
        "error: the job ends with the same one before anything starts.",
    )
    yield meaning(
        "start",
        "before a run: `verl-npu lint --start RUN.SH`",
        about="The job's own program, its workers and its engine's configuration are started on phantom NPUs in one "
        "process, and upstream's code has raised an error: the job ends with the same one before its first step.",
    )
    for code, about in _OF_STARTS.items():
        yield meaning(code, "up to verl-npu 0.1; `verl-npu lint --start RUN.SH` says it as `start`", about=about)
    for rule in OF_SCRIPTS:
        # What is only handed on says nothing of itself: the guards tell.
        if rule.about:
            also = f", and {JOB}" if Stage.JOB in rule.stages else ""
            yield meaning(rule.code, f"before a run: {_LINT}{also}", about=rule.about)
    asked = {rule.code for rule in OF_SCRIPTS}
    for guard in rollout.RULES:
        if guard.code in asked:
            yield meaning(guard.code, f"before a run: {_LINT}; and {JOB}", about=guard.about)


def _of_the_doctor() -> Iterator[Meaning]:
    for subject in SUBJECTS:
        yield _of_a_subject(subject, subject.code)
        for part in subject.parts if subject.code != "variables" else ():
            yield _of_a_subject(subject, part)
    for rule in OF_VARIABLES:
        by = f"before a run: {_DOCTOR}" + (f" and {_LINT}" if Stage.SCRIPT in rule.stages else "")
        yield meaning(rule.name, by, expected=rule.expected, otherwise=rule.why, a_value_that_works=rule.value)


def _of_a_subject(subject: Subject, code: str) -> Meaning:
    level = "" if subject.level.value == "static" else f" --level {subject.level.value}"
    return meaning(
        code,
        f"before a run: `verl-npu doctor{level}`",
        about=subject.about,
        alone=f"verl-npu doctor{level} --only {code}",
    )


def _of_watch() -> Iterator[Meaning]:
    for kind, about in watch.ABOUT.items():
        yield meaning(kind.value, "while it runs: `verl-npu watch LOG`", about=about)


def _of_logs() -> Iterator[Meaning]:
    for rule in OF_LOGS.values():
        yield _of_a_log(rule)
    for code, means in CAUSES.items():
        yield meaning(
            code,
            "after a run: `verl-npu doctor --log LOG`, among what an error may come of",
            it_means=_("{text}.").format(text=_(means)),
        )


def _of_a_log(rule: LogRule) -> Meaning:
    return meaning(
        rule.code,
        "after a run: `verl-npu doctor --log LOG`",
        a_log_has=" ".join(rule.quotes[0].split()) if rule.quotes else "",
        it_means=_("{text}.").format(text=unfilled(rule.means)),
        likely=", ".join(code for code in rule.candidates if code != rule.code),
        to_do=_("{text}.").format(text=unfilled(rule.fix)),
        so_in=rule.versions,
        told_before_by=f"`{rule.before}`" if rule.before else "",
        seen_in=", ".join(rule.seen),
    )
