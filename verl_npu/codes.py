"""The meaning of every code that commands and jobs print, including the codes of other distributions.

The plugin's codes are its variables, guards, and errors. A code never changes its meaning and is never reused, because
reports, JSON, and users' scripts contain it. If several commands print the same code, they check the same thing at
different times.
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
"""The entry-point group that other distributions use to add codes. Each refers to a function that returns Meanings."""
JOB = "the job itself, when it starts"
"""The value of `Meaning.said_by` for a code that a job prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of a code that a given command or a job prints."""

    code: str
    said_by: str
    """The time when the code is printed, and the command that prints it."""
    rows: Mapping[str, str]
    """The texts by their labels. No text is empty."""


def meanings() -> dict[str, list[Meaning]]:
    """Return the meanings of each code, ordered by the time at which the code is printed: codes printed before a run
    come first, and codes printed after it come last."""
    found: dict[str, list[Meaning]] = {}
    for each in sorted((*_contributed(), *own()), key=_moment):
        said = found.setdefault(each.code, [])
        # The workbench's row for the same guard also names lint, so drop the plugin's row.
        if each.rows not in [other.rows for other in said]:
            said.append(each)
    return found


def own() -> Iterator[Meaning]:
    """Yield the meanings of the plugin's own codes."""
    yield from _variable_meanings()
    yield from _guard_meanings()
    yield from _error_meanings()


def _contributed() -> Iterator[Meaning]:
    for point in metadata.entry_points(group=GROUP):
        try:
            yield from point.load()()
        except Exception as error:
            # One broken distribution must not hide the codes of the others.
            warn(f"verl-npu ignores the codes of {point.value}: {type(error).__name__}: {error}")


def _moment(meaning: Meaning) -> int:
    moments = ("before a run", JOB, "while it runs", "after a run")
    return next((place for place, words in enumerate(moments) if meaning.said_by.startswith(words)), len(moments))


def meaning(code: str, said_by: str, **rows: str) -> Meaning:
    """Return the explanation of a code for `verl-npu explain`. Each keyword in `rows` is the label of a row, and its
    value is the text of the row. Rows with empty text are omitted."""
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
    """Yield the meanings of the checks that a job makes. The workbench adds which of them lint makes in a script."""
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
