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
"""Properties that a successful compilation does not show."""


class Verdict(enum.Enum):
    """The result of compiling a kernel."""

    COMPILES = "compiles"
    """It compiles up to the binary, which only CANN can make."""
    OVERFLOWS = "overflows"
    """It needs more of a buffer than the NPU has."""
    MAY_OVERFLOW = "may overflow"
    """It overflows with guessed arguments; with others it may fit."""
    REFUSED = "refused"
    """A stage of the compiler reports an error."""
    CRASHED = "crashed"
    """A stage of the compiler crashed."""
    HANGS = "hangs"
    """It compiles, but waits for a signal that it never sets."""
    NOT_JUDGED = "not judged"

    @property
    def fails(self) -> bool:
        """Whether a launch with these arguments raises an error or never ends."""
        return self in (Verdict.OVERFLOWS, Verdict.REFUSED, Verdict.CRASHED, Verdict.HANGS)


class Stage(enum.Enum):
    """The stages of the compiler."""

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
    """A file of the user's."""
    GUESSED = "guessed"
    """A guess from the kernel's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A launch's arguments, as the compiler sees them."""

    signature: Mapping[str, str]
    """Triton's name for the type of each parameter: *bf16, i32."""
    constants: Mapping[str, object]
    """Values that the compiler knows, by parameter: constexpr, None, and integers that are 1."""
    divisible: tuple[str, ...] = ()
    """Parameters that are multiples of 16, pointers among them."""
    ones: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    origin: Origin = Origin.GUESSED
    label: str = ""
    """The values that the configuration sets."""
    unsure: tuple[str, ...] = ()
    """Parameters whose type or value was guessed, or may differ between launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a source file."""

    name: str
    module: str
    file: str
    line: int
    cases: tuple[Arguments, ...] = ()
    """The arguments for each configuration, in the author's order."""
    source: str = ""
    """A hash of its code and of the globals that it uses."""
    why: str = ""
    """The reason why it has no arguments."""

    @property
    def id(self) -> str:
        """Its full name, module:function."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of compiling a kernel with one set of arguments."""

    verdict: Verdict
    stage: Stage | None = None
    why: str = ""
    buffer: str = ""
    needed: int = 0
    """Bits that the kernel needs of the buffer."""
    there: int = 0
    """Bits that the buffer has."""
    file: str = ""
    line: int = 0
    text: str = ""
    """The source line."""
    notes: tuple[str, ...] = ()
    """Changes that the compiler made by itself after an overflow."""
    signature: Mapping[str, str] = field(default_factory=dict)
    """The compiled types: a variant of the guess, if the front end refused the guess itself."""
    seconds: float = 0.0
    cached: bool = False


Blocks: TypeAlias = Mapping[str, int]
"""Block sides, by the name of the constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A kernel, and the outcome for each set of arguments that was tried."""

    kernel: Kernel
    tried: tuple[tuple[Arguments, Outcome], ...] = ()
    fits: tuple[Blocks, ...] = ()
    """For a kernel that overflows: the blocks that compile and are nearest to the author's."""
    searched: int = 0
    """Number of blocks that were compiled to find them."""

    @property
    def best(self) -> Outcome:
        """The outcome that counts: the first that compiles, as Triton's tuner skips the others, or else the first."""
        if not self.tried:
            return Outcome(verdict=Verdict.NOT_JUDGED, why=self.kernel.why)
        good = [outcome for _unused, outcome in self.tried if outcome.verdict is Verdict.COMPILES]
        return good[0] if good else self.tried[0][1]

    @property
    def arguments(self) -> Arguments | None:
        """The arguments of the outcome that counts."""
        best = self.best
        return next((arguments for arguments, outcome in self.tried if outcome is best), None)


def counts(judged: Sequence[Judged]) -> dict[Verdict, int]:
    """Return the number of kernels with each verdict."""
    return {verdict: sum(each.best.verdict is verdict for each in judged) for verdict in Verdict}
