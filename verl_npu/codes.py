"""What the codes mean that the commands and a job's errors print: variables, guards and errors of the plugin, and what
other distributions add.

A code is stable: it is in reports, in JSON and in scripts of users. One that is given is never given to anything else.
Where several commands print one, they look at the same thing at different moments.
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
"""The entry points by which other distributions add codes: functions that return an iterable of Meaning."""
JOB = "the job itself, when it starts"
"""How `Meaning.said_by` names a job."""


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
    for each in sorted((*_of_others(), *own()), key=_moment):
        said = found.setdefault(each.code, [])
        # The workbench says of a guard that lint asks it, too: the plugin's own row, of the job alone, says less.
        if each.rows not in [other.rows for other in said]:
            said.append(each)
    return found


def own() -> Iterator[Meaning]:
    """Yield what each code of the plugin means."""
    yield from _of_variables()
    yield from _of_guards()
    yield from _of_errors()


def _of_others() -> Iterator[Meaning]:
    for point in metadata.entry_points(group=GROUP):
        try:
            yield from point.load()()
        except Exception as error:
            # Whatever is wrong with it, the codes of the others are explained.
            warn(f"the codes of {point.value} are left out: {type(error).__name__}: {error}")


def _moment(meaning: Meaning) -> int:
    moments = ("before a run", JOB, "while it runs", "after a run")
    return next((place for place, words in enumerate(moments) if meaning.said_by.startswith(words)), len(moments))


def meaning(code: str, said_by: str, **rows: str) -> Meaning:
    """Return what a code means; the name of each row is its label, and rows without a text are left out."""
    said = {label.replace("_", " "): text for label, text in rows.items() if text}
    return Meaning(code=code, said_by=_(said_by), rows={label: _translatable(text) for label, text in said.items()})


def _translatable(text: str) -> str:
    return text if isinstance(text, Message) else _(text)


def _of_variables() -> Iterator[Meaning]:
    for variable in environment.VARIABLES.values():
        if variable.audience == USER:
            yield meaning(
                variable.name,
                "before a run: `verl-npu doctor`, `verl-npu check` and `verl-npu lint RUN.SH`; and what reads it",
                about=f"{variable.summary[:1].upper()}{variable.summary[1:]}.",
                expected=variable.expected,
                default=variable.default,
            )


def _of_guards() -> Iterator[Meaning]:
    """Yield the guards that a job meets. The workbench adds which of them lint asks of a script."""
    for rule in rollout.RULES:
        yield meaning(rule.code, JOB, about=rule.about)
    guards: tuple[Rule[mindspeed.Asked], ...] = mindspeed.RULES
    for guard in guards:
        yield meaning(guard.code, f"before a run: `verl-npu lint RUN.SH`; and {JOB}", about=guard.about)


def _of_errors() -> Iterator[Meaning]:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.VerlNpuError):
            yield meaning(
                kind.__name__,
                "an error of verl-npu, in a job or from a command",
                about=" ".join((kind.__doc__ or "").split()),
                caught_as=f"verl_npu.errors.{kind.__name__}",
            )
