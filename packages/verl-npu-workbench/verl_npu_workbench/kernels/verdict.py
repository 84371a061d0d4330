"""The verdicts on a kernel, and the data that belongs to each."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from verl_npu.language import gettext as _

NOT_SHOWN = (
    _("correct results or speed on an NPU"),
    _("that a kernel ends if it waits for signals in a loop or a condition"),
    _("the last stage of the compiler, hivmc, which only CANN has"),
    _("the result of your CANN's own compiler, if its version differs"),
)
"""The properties of a kernel that a successful compilation does not show."""


class Verdict(enum.Enum):
    """The result of compiling a kernel."""

    COMPILES = "compiles"
    """It compiles up to the binary, which only CANN can produce."""
    OVERFLOWS = "overflows"
    """It needs more space in a buffer than the NPU has."""
    MAY_OVERFLOW = "may overflow"
    """It overflows with guessed arguments. With other arguments it may fit."""
    REFUSED = "refused"
    """A stage of the compiler reports an error."""
    CRASHED = "crashed"
    """A stage of the compiler crashed."""
    HANGS = "hangs"
    """It compiles, but waits for a signal that it never sets."""
    NOT_JUDGED = "not judged"

    @property
    def fails(self) -> bool:
        """Return whether a launch with these arguments raises an error or never ends."""
        return self in (Verdict.OVERFLOWS, Verdict.REFUSED, Verdict.CRASHED, Verdict.HANGS)


class Stage(enum.Enum):
    """The stages of Ascend's Triton compiler."""

    FRONT_END = "front end"
    """Triton's own front end, which reads the Python source."""
    ADAPTER = "adapter"
    """triton-adapter-opt, which translates Triton's dialect to linalg."""
    COMPILER = "compiler"
    """bishengir-compile, which plans the buffers."""


class Origin(enum.Enum):
    """The source of a kernel's arguments."""

    CAPTURED = "captured"
    """A recorded launch."""
    GIVEN = "given"
    """A file that the user gave."""
    GUESSED = "guessed"
    """A guess from the kernel's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a launch, in the format that is passed to the compiler."""

    signature: Mapping[str, str]
    """The type of each parameter, by Triton's name for it, such as *bf16 or i32."""
    constants: Mapping[str, object]
    """The parameters whose value is known to the compiler, with their values: constexpr parameters, None, and integers
    that are 1."""
    divisible: tuple[str, ...] = ()
    """Parameters, including pointers, whose value is a multiple of 16."""
    ones: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    origin: Origin = Origin.GUESSED
    label: str = ""
    """A description of the values that the configuration sets."""
    unsure: tuple[str, ...] = ()
    """Parameters whose type or value is guessed or may differ between launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel in a source file."""

    name: str
    module: str
    file: str
    line: int
    cases: tuple[Arguments, ...] = ()
    """The arguments for each configuration, in the author's order."""
    source: str = ""
    """A hash of the kernel's code and of the global values that the code uses."""
    why: str = ""
    """The reason why there are no arguments for the kernel."""

    @property
    def id(self) -> str:
        """The kernel's full name, module:function."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of compiling a kernel with one set of arguments."""

    verdict: Verdict
    stage: Stage | None = None
    why: str = ""
    buffer: str = ""
    needed: int = 0
    """The number of bits that the kernel needs in the buffer."""
    there: int = 0
    """The number of bits that the buffer has."""
    file: str = ""
    line: int = 0
    text: str = ""
    """The text of the source line that the message refers to."""
    notes: tuple[str, ...] = ()
    """Changes that the compiler made automatically after an overflow."""
    signature: Mapping[str, str] = field(default_factory=dict)
    """The types that the kernel was compiled with. They differ from the guess if the front end rejected the guess."""
    seconds: float = 0.0
    cached: bool = False


Blocks: TypeAlias = Mapping[str, int]
"""The length of each block, by the name of the constant that sets the length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A kernel, and the outcome for each set of arguments that was tried."""

    kernel: Kernel
    tried: tuple[tuple[Arguments, Outcome], ...] = ()
    fits: tuple[Blocks, ...] = ()
    """For a kernel that overflows: the block sizes that compile and are nearest to the author's."""
    searched: int = 0
    """The number of block sizes that were compiled in the search."""

    @property
    def best(self) -> Outcome:
        """The outcome that determines the verdict on the kernel. If the kernel compiles with at least one set of
        arguments, this is the outcome for the first such set, because Triton's tuner skips configurations that fail.
        Otherwise, this is the outcome for the first set."""
        if not self.tried:
            return Outcome(verdict=Verdict.NOT_JUDGED, why=self.kernel.why)
        good = [outcome for _unused, outcome in self.tried if outcome.verdict is Verdict.COMPILES]
        return good[0] if good else self.tried[0][1]

    @property
    def arguments(self) -> Arguments | None:
        """The arguments that produced the outcome `best`."""
        best = self.best
        return next((arguments for arguments, outcome in self.tried if outcome is best), None)


def counts(judged: Sequence[Judged]) -> dict[Verdict, int]:
    """Return the number of kernels with each verdict."""
    return {verdict: sum(each.best.verdict is verdict for each in judged) for verdict in Verdict}
