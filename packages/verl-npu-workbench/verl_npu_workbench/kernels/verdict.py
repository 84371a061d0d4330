"""What is said of a kernel: the one closed list of verdicts, and what belongs to each."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from verl_npu.language import gettext as _

NOT_SHOWN = (
    _("right results or speed on an NPU"),
    _("whether it ends, if it waits for signals in a loop or a condition"),
    _("the last stage of the compiler, hivmc, which is in CANN alone"),
    _("what the compiler of your CANN says if it is another version"),
)
"""What a kernel that compiles here does not show."""


class Verdict(enum.Enum):
    """What the compiler does with a kernel."""

    COMPILES = "compiles"
    """Up to the binary, which CANN alone can make."""
    OVERFLOWS = "overflows"
    """It needs more of a buffer than the NPU has."""
    MAY_OVERFLOW = "may overflow"
    """It does with arguments that were guessed, and with others it may fit."""
    REFUSED = "refused"
    """A stage of the compiler says what it does not take."""
    CRASHED = "crashed"
    """A stage of the compiler ended by a signal."""
    HANGS = "hangs"
    """It compiles, and waits for a signal of its own that it does not give."""
    NOT_JUDGED = "not judged"

    @property
    def fails(self) -> bool:
        """Whether a launch with these arguments ends with an error, or not at all."""
        return self in (Verdict.OVERFLOWS, Verdict.REFUSED, Verdict.CRASHED, Verdict.HANGS)


class Stage(enum.Enum):
    """The stages of the compiler."""

    FRONT_END = "front end"
    """Triton's own, which reads the Python source."""
    ADAPTER = "adapter"
    """triton-adapter-opt, from Triton's dialect to linalg."""
    COMPILER = "compiler"
    """bishengir-compile, which plans the buffers."""


class Origin(enum.Enum):
    """Where the arguments come from."""

    CAPTURED = "captured"
    """Of a launch that was seen."""
    GIVEN = "given"
    """By the user, in a file."""
    GUESSED = "guessed"
    """From the kernel's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a kernel is launched with, as far as the compiler is concerned."""

    signature: Mapping[str, str]
    """By parameter Triton's name of its type: *bf16, i32."""
    constants: Mapping[str, object]
    """By parameter its value, of all that the compiler knows: constexpr, None, and integers that are 1."""
    divisible: tuple[str, ...] = ()
    """Parameters that are multiples of 16, pointers among them."""
    ones: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    origin: Origin = Origin.GUESSED
    label: str = ""
    """What its configuration sets."""
    unsure: tuple[str, ...] = ()
    """Parameters whose type or value was guessed, or may be another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a source file."""

    name: str
    module: str
    file: str
    line: int
    cases: tuple[Arguments, ...] = ()
    """One for each configuration, as its author has ordered them."""
    source: str = ""
    """A hash of all that its code is made of."""
    why: str = ""
    """Why it has no arguments."""

    @property
    def id(self) -> str:
        """How it is named: module:function."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the compiler said of a kernel with one set of arguments."""

    verdict: Verdict
    stage: Stage | None = None
    why: str = ""
    buffer: str = ""
    needed: int = 0
    """Bits."""
    there: int = 0
    """Bits."""
    file: str = ""
    line: int = 0
    text: str = ""
    """The line of the source."""
    notes: tuple[str, ...] = ()
    """What the compiler did by itself after an overflow."""
    signature: Mapping[str, str] = field(default_factory=dict)
    """With which it was compiled: near the guess, if the guess itself was refused."""
    seconds: float = 0.0
    cached: bool = False


Blocks: TypeAlias = Mapping[str, int]
"""Sides of blocks, by the name of their constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A kernel, and what was said of it with each set of arguments that was tried."""

    kernel: Kernel
    tried: tuple[tuple[Arguments, Outcome], ...] = ()
    fits: tuple[Blocks, ...] = ()
    """Of a kernel that overflows the blocks that compile, nearest to its author's."""
    searched: int = 0
    """How many were compiled for that."""

    @property
    def best(self) -> Outcome:
        """The outcome that counts: of several configurations Triton's tuner leaves out those that do not compile."""
        if not self.tried:
            return Outcome(verdict=Verdict.NOT_JUDGED, why=self.kernel.why)
        good = [outcome for _unused, outcome in self.tried if outcome.verdict is Verdict.COMPILES]
        return good[0] if good else self.tried[0][1]

    @property
    def arguments(self) -> Arguments | None:
        """Those of the outcome that counts."""
        best = self.best
        return next((arguments for arguments, outcome in self.tried if outcome is best), None)


def counts(judged: Sequence[Judged]) -> dict[Verdict, int]:
    """Return how many kernels there are of each verdict."""
    return {verdict: sum(each.best.verdict is verdict for each in judged) for verdict in Verdict}
