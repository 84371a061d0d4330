"""verl's fused Triton kernels for NPUs: on tensors that are not CUDA's, with smaller blocks where the installed
compiler refuses upstream's, and without columns that the vocabulary does not have.

Each of the blocks was compiled for A2 and A3 by `verl-npu kernels --fit`; a test compares the numbers with torch's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ... import reporting
from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Calls, Defines, Never, Not

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from .columns import Asked, Loss

fused_kernels = Feature(
    "fused_kernels",
    "verl's fused loss takes tensors of NPUs, gets blocks that fit where the compiler refuses upstream's, and counts "
    "no columns that the vocabulary does not have.",
)
Result = TypeVar("Result")
MODULE = "verl.utils.kernel.kernels"
_LINK = "https://github.com/verl-project/verl/issues/7950"
_WHY = (
    "with use_fused_kernels and the triton backend Ascend's compiler ends the job: ub overflow, requires 8577280 bits "
    "while 1572864 bits available. Upstream's blocks are those of a GPU. Before that, upstream asserts that "
    "its tensors are CUDA's, which they say only after transfer_to_npu."
)
_HOW = (
    "If the installed compiler refuses upstream's blocks for lack of memory, the kernel gets smaller ones, and is "
    "launched again. While it is, tensors of NPUs pass for CUDA's."
)
_LOSS = "verl.utils.kernel.linear_cross_entropy:LinearCrossEntropy.forward"
_RANGE = "nvtx.range"
_RETIRED = Never("whether a compiler takes upstream's blocks is seen when it compiles them")
_OVERFLOW = "ub overflow"


class Configuration(Protocol):
    """One of Triton's tuner."""

    kwargs: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of one kernel."""

    upstreams: Mapping[str, int]
    ours: Mapping[str, int]


BLOCKS: Mapping[str, Blocks] = {
    "efficient_entropy_kernel_general_mainloop": Blocks(
        upstreams={"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 32},
        ours={"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32},
    ),
    "efficient_entropy_backward_kernel_general_d_logits_split_N": Blocks(
        upstreams={"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 16},
        ours={"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 16},
    ),
}
"""By kernel; the others compile, or are launched only where a caller asks verl for another way."""
_FORWARD, _BACKWARD = BLOCKS


@fused_kernels.wrap(
    f"{MODULE}:efficient_entropy_forward",
    why=f"{_WHY} Up to v0.7.0 a vocabulary that is no multiple of 1024 gives wrong log probabilities and entropies, "
    "without an error: what lies behind it is counted as logits of zero "
    "(https://github.com/verl-project/verl/pull/5349).",
    how=f"{_HOW} Where upstream counts wrongly, what a vocabulary has beyond a multiple of 1024 is computed apart.",
    link=_LINK,
    retired_by=_RETIRED,
    requires=Defines(f"{MODULE}:{_FORWARD}"),
)
def mend_the_fused_loss(
    original: Callable[[Tensor, Tensor, Tensor, int, float, ProcessGroup | None], Loss],
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    reduction: int = 2,
    temperature: float = 1.0,
    dist_process_group: ProcessGroup | None = None,
) -> Loss:
    """Compute log probabilities and entropies."""
    # Imported here, as what else computes: most jobs have no fused loss.
    from .columns import Asked, counts_beyond, without_columns_beyond
    from .cuda import taken_for_cuda

    def compute(of: Asked) -> Loss:
        given = (of.hidden, of.weight, of.labels, of.reduction, of.temperature, of.group)
        return _fitted(_FORWARD, lambda: original(*given))

    asked = Asked(
        hidden=hidden,
        weight=weight,
        labels=labels,
        reduction=reduction,
        temperature=temperature,
        group=dist_process_group,
    )
    kernel = vars(sys.modules[MODULE]).get(_FORWARD)
    with taken_for_cuda(hidden):
        return without_columns_beyond(compute, asked) if counts_beyond(kernel, len(weight)) else compute(asked)


@fused_kernels.wrap(
    f"{MODULE}:efficient_entropy_backward",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=_RETIRED,
    requires=Defines(f"{MODULE}:{_BACKWARD}"),
)
def fit_blocks_of_the_fused_loss_gradient(
    original: Callable[..., Result], dlogprobs: Tensor, *given: object, **named: object
) -> Result:
    """Compute the gradients of what the fused loss was given."""
    from .cuda import taken_for_cuda

    with taken_for_cuda(dlogprobs):
        return _fitted(_BACKWARD, lambda: original(dlogprobs, *given, **named))


@fused_kernels.wrap(
    _LOSS,
    why="torch that is built without CUDA, as for aarch64, has no NVTX, and the range around the fused loss ends the "
    "job: NVTX functions not installed.",
    how="Where torch has no NVTX, its ranges do nothing.",
    link=_LINK,
    retired_by=AllOf(Defines(_LOSS), Not(Calls(_LOSS, _RANGE))),
    requires=Calls(_LOSS, _RANGE),
)
def leave_out_missing_ranges(original: Callable[..., Result], *given: object, **named: object) -> Result:
    """Compute the fused loss."""
    from .cuda import without_missing_ranges

    without_missing_ranges()
    return original(*given, **named)


def _fitted(name: str, compute: Callable[[], Result]) -> Result:
    try:
        return compute()
    except Exception as error:
        # The kernel is the first that is launched: nothing was computed, sent or changed before.
        if _OVERFLOW not in str(error) or not _shrink(name):
            raise
    blocks = BLOCKS[name]
    changed = ", ".join(f"{key}={side}" for key, side in blocks.ours.items() if side != blocks.upstreams[key])
    reporting.report(f"the compiler has no room for the blocks of verl's kernel {name}: it is launched with {changed}")
    return compute()


def _shrink(name: str) -> bool:
    """Give a kernel our blocks; returns whether it had upstream's."""
    kernel = vars(sys.modules[MODULE]).get(name)
    # None if it is no longer tuned.
    configurations: Sequence[Configuration] = getattr(kernel, "configs", ())
    if len(configurations) != 1 or configurations[0].kwargs != BLOCKS[name].upstreams:
        return False
    configurations[0].kwargs.update(BLOCKS[name].ours)
    return True
