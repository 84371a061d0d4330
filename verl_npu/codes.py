"""The meaning of every code that the commands and a job's errors print, those of other distributions included.

The plugin's codes are its variables, guards, and errors. A code is stable, because reports, JSON, and users' scripts
contain it, and it is never reused. If several commands print one code, they look at the same thing at different times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from . import environment, errors
from .features.megatron import rules as mindspeed
from .features.rollout import rules as rollout
from .findings import Rule
from .language import Message
from .language import gettext as _
from .reporting import warn
from .variable import USER

GROUP = "verl_npu.codes"
"""The entry points through which other distributions add codes: functions that return an iterable of Meaning."""
JOB = "the job itself, when it starts"
"""The words of `Meaning.said_by` for a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of one code where one command prints it."""

    code: str
    said_by: str
    """When it is printed, and by which command."""
    rows: Mapping[str, str]
    """Texts by label, none of them empty."""


def meanings() -> dict[str, list[Meaning]]:
    """Return the meanings of every code, in the order of the moments at which it is printed."""
    found: dict[str, list[Meaning]] = {}
    for each in sorted((*_contributed(), *own()), key=_moment):
        said = found.setdefault(each.code, [])
        # The workbench adds that lint checks the same guard; its row says more than the plugin's own, so drop ours.
        if each.rows not in [other.rows for other in said]:
            said.append(each)
    return found


def own() -> Iterator[Meaning]:
    """Yield the meaning of each code of the plugin."""
    yield from _variable_meanings()
    yield from _guard_meanings()
    yield from _error_meanings()


def _contributed() -> Iterator[Meaning]:
    for point in metadata.entry_points(group=GROUP):
        try:
            yield from point.load()()
        except Exception as error:
            # One broken distribution must not hide the codes of the others.
            warn(f"the codes of {point.value} are left out: {type(error).__name__}: {error}")


def _moment(meaning: Meaning) -> int:
    moments = ("before a run", JOB, "while it runs", "after a run")
    return next((place for place, words in enumerate(moments) if meaning.said_by.startswith(words)), len(moments))


def meaning(code: str, said_by: str, **rows: str) -> Meaning:
    """Return the meaning of a code. Each row's keyword is its label; rows without a text are left out."""
    said = {label.replace("_", " "): text for label, text in rows.items() if text}
    return Meaning(code=code, said_by=_(said_by), rows={label: _translatable(text) for label, text in said.items()})


def _translatable(text: str) -> str:
    return text if isinstance(text, Message) else _(text)


def _variable_meanings() -> Iterator[Meaning]:
    for variable in environment.VARIABLES.values():
        if variable.audience == USER:
            yield meaning(
                variable.name,
                "before a run: `verl-npu doctor`, `verl-npu check` and `verl-npu lint RUN.SH`; later, when a process "
                "reads the variable",
                about=f"{variable.summary[:1].upper()}{variable.summary[1:]}.",
                expected=variable.expected,
                default=variable.default,
            )


def _guard_meanings() -> Iterator[Meaning]:
    """Yield the guards of a job. The workbench adds which of them lint checks in a script."""
    for rule in rollout.RULES:
        yield meaning(rule.code, JOB, about=rule.about)
    guards: tuple[Rule[mindspeed.Asked], ...] = mindspeed.RULES
    for guard in guards:
        yield meaning(guard.code, f"before a run: `verl-npu lint RUN.SH`; and {JOB}", about=guard.about)


def _error_meanings() -> Iterator[Meaning]:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.VerlNpuError):
            yield meaning(
                kind.__name__,
                "an error of verl-npu, in a job or from a command",
                about=" ".join((kind.__doc__ or "").split()),
                caught_as=f"verl_npu.errors.{kind.__name__}",
            )
