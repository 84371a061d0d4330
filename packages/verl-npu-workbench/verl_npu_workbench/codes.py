"""The meanings of the codes of rules, findings, and anomalies that the workbench's commands print."""

from __future__ import annotations

from collections.abc import Iterator

from verl_npu.codes import JOB, Meaning, meaning
from verl_npu.features.rollout import rules as rollout
from verl_npu.findings import Stage
from verl_npu.language import gettext as _

from . import (
    translations,  # noqa: F401  # importing it registers the catalogue
    watch,
)
from .diagnosis.rules import BY_CODE as LOG_RULES
from .diagnosis.rules import CAUSES, LogRule, unfilled
from .doctor.examination import SUBJECTS, Subject
from .doctor.variables import RULES as VARIABLE_RULES
from .jobs.levers import LEVERS
from .jobs.rules import RULES as SCRIPT_RULES

_REPLACED = {
    "flash-attention-3": "The script asks transformers for FlashAttention 3, which has no package for NPUs.",
    "rollout-engine": "No rollout engine was named, and the revision's configuration names none either.",
}
"""Codes of rules that no longer exist. `lint --start` finds these mistakes now, by starting the job."""
_LINT, _DOCTOR = "`verl-npu lint RUN.SH`", "`verl-npu doctor`"


def meanings() -> Iterator[Meaning]:
    """Yield the meaning of each code of the workbench. `verl-npu explain` calls this through an entry point."""
    yield from _script_meanings()
    yield from _doctor_meanings()
    yield from _watch_meanings()
    yield from _log_meanings()


def _script_meanings() -> Iterator[Meaning]:
    yield meaning(
        "hydra",
        f"before a run: {_LINT}",
        about="Hydra could not compose the settings that the script gives its trainer. The job would fail with the "
        "same error before it starts anything.",
    )
    yield meaning(
        "start",
        "before a run: `verl-npu lint --start RUN.SH`",
        about="The job's program, its workers, and its engine's configuration were started on phantom NPUs in one "
        "process. Upstream's code raised an error. The job would fail with the same error before its first step.",
    )
    for code, about in _REPLACED.items():
        yield meaning(code, "now `verl-npu lint --start RUN.SH` reports it as `start`", about=about)
    for rule in SCRIPT_RULES:
        # A rule without a text only calls a guard, and the guard has the text.
        if rule.about:
            also = f", and {JOB}" if Stage.JOB in rule.stages else ""
            yield meaning(rule.code, f"before a run: {_LINT}{also}", about=rule.about)
    for lever in LEVERS:
        yield meaning(
            lever.code,
            f"before a run: {_LINT}",
            about=lever.figure,
            measured_with=lever.conditions,
            source=", ".join(lever.source),
        )
    asked = {rule.code for rule in SCRIPT_RULES}
    for guard in rollout.RULES:
        if guard.code in asked:
            yield meaning(guard.code, f"before a run: {_LINT}; and {JOB}", about=guard.about)


def _doctor_meanings() -> Iterator[Meaning]:
    for subject in SUBJECTS:
        yield _subject_meaning(subject, subject.code)
        for part in subject.parts if subject.code != "variables" else ():
            yield _subject_meaning(subject, part)
    for rule in VARIABLE_RULES:
        by = f"before a run: {_DOCTOR}" + (f" and {_LINT}" if Stage.SCRIPT in rule.stages else "")
        yield meaning(rule.name, by, expected=rule.expected, otherwise=rule.why, a_value_that_works=rule.value)


def _subject_meaning(subject: Subject, code: str) -> Meaning:
    level = "" if subject.level.value == "static" else f" --level {subject.level.value}"
    return meaning(
        code,
        f"before a run: `verl-npu doctor{level}`",
        about=subject.about,
        alone=f"verl-npu doctor{level} --only {code}",
    )


def _watch_meanings() -> Iterator[Meaning]:
    for kind, about in watch.ABOUT.items():
        yield meaning(kind.value, "during a run: `verl-npu watch LOG`", about=about)


def _log_meanings() -> Iterator[Meaning]:
    for rule in LOG_RULES.values():
        yield _log_rule_meaning(rule)
    for code, means in CAUSES.items():
        yield meaning(
            code,
            "after a run: `verl-npu doctor --log LOG`, as one of the likely causes of an error",
            it_means=_("{text}.").format(text=_(means)),
        )


def _log_rule_meaning(rule: LogRule) -> Meaning:
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
