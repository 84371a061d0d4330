"""Patches that make verl's fused Triton kernels run on NPUs.

With the patches, the kernels accept NPU tensors, use smaller blocks if the installed compiler rejects upstream's
blocks, and ignore columns beyond the vocabulary. `verl-npu kernels --fit` compiled all of verl-npu's blocks for A2 and
A3, and a test compares the results with those of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ... import reporting
from ...errors import UnavailableError
from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Calls, Defines, Never, Not

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from .columns import Loss, LossArguments

fused_kernels = Feature(
    "fused_kernels",
    "verl's fused loss accepts NPU tensors, gets smaller blocks if the compiler rejects upstream's, and counts no "
    "columns beyond the vocabulary.",
)
Result = TypeVar("Result")
MODULE = "verl.utils.kernel.kernels"
_LINK = "https://github.com/verl-project/verl/issues/7950"
_WHY = (
    "With use_fused_kernels and the triton backend, Ascend's compiler ends the job: `ub overflow, requires 8577280 "
    "bits while 1572864 bits available`. Upstream's block sizes are for a GPU. Before that, upstream asserts that its "
    "tensors are CUDA tensors, which holds for NPU tensors only after transfer_to_npu."
)
_HOW = (
    "If the installed compiler rejects upstream's blocks for lack of memory, we launch the kernel again with smaller "
    "blocks. During the launch, NPU tensors count as CUDA tensors."
)
_LOSS = "verl.utils.kernel.linear_cross_entropy:LinearCrossEntropy.forward"
_RANGE = "nvtx.range"
_RETIRED = Never("only a compilation shows whether a compiler accepts upstream's blocks")
_OVERFLOW = "ub overflow"


class Configuration(Protocol):
    """One configuration of Triton's autotuner."""

    kwargs: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The block sizes of one kernel: upstream's sizes and verl-npu's sizes."""

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
"""Block sizes by kernel. All other kernels compile as they are, or run only if a caller chooses another
implementation."""
_FORWARD, _BACKWARD = BLOCKS


@fused_kernels.wrap(
    f"{MODULE}:efficient_entropy_forward",
    why=f"{_WHY} Up to v0.7.0, a vocabulary size that is not a multiple of 1024 gives wrong log-probabilities and "
    "entropies, without an error: the kernel counts the columns beyond the vocabulary as logits of zero "
    "(https://github.com/verl-project/verl/pull/5349).",
    how=f"{_HOW} Where upstream counts wrongly, we compute the columns after the last multiple of 1024 separately.",
    link=_LINK,
    retired_by=_RETIRED,
    requires=Defines(f"{MODULE}:{_FORWARD}"),
)
def fix_the_fused_loss(
    original: Callable[[Tensor, Tensor, Tensor, int, float, ProcessGroup | None], Loss],
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    reduction: int = 2,
    temperature: float = 1.0,
    dist_process_group: ProcessGroup | None = None,
) -> Loss:
    """Compute log-probabilities and entropies on NPUs, without counting columns beyond the vocabulary."""
    # Imported here, because most jobs have no fused loss.
    from .columns import LossArguments, counts_beyond_vocabulary, loss_within_vocabulary
    from .cuda import npu_counts_as_cuda

    def compute(of: LossArguments) -> Loss:
        given = (of.hidden, of.weight, of.labels, of.reduction, of.temperature, of.group)
        return _with_fitting_blocks(_FORWARD, lambda: original(*given))

    asked = LossArguments(
        hidden=hidden,
        weight=weight,
        labels=labels,
        reduction=reduction,
        temperature=temperature,
        group=dist_process_group,
    )
    upstream = vars(sys.modules[MODULE])
    # Without Triton, upstream's decorators leave objects instead of the kernels, and a launch ends in a TypeError.
    if not upstream.get("HAVE_TRITON", True):
        error = UnavailableError(
            subject="use_fused_kernels with the backend triton",
            found="Triton is not installed",
            fix="install triton-ascend for this CANN, or set actor_rollout_ref.model.use_fused_kernels=False",
        )
        error.name = "triton"
        raise error
    kernel = upstream.get(_FORWARD)
    with npu_counts_as_cuda(hidden):
        return (
            loss_within_vocabulary(compute, asked) if counts_beyond_vocabulary(kernel, len(weight)) else compute(asked)
        )


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
    """Compute the gradients of the fused loss with respect to its inputs. Reduce blocks that are too large for the
    NPU."""
    from .cuda import npu_counts_as_cuda

    with npu_counts_as_cuda(dlogprobs):
        return _with_fitting_blocks(_BACKWARD, lambda: original(dlogprobs, *given, **named))


@fused_kernels.wrap(
    _LOSS,
    why="A torch built without CUDA, as for aarch64, has no NVTX, and the NVTX range around the fused loss ends the "
    "job: `NVTX functions not installed`.",
    how="If torch has no NVTX, its ranges do nothing.",
    link=_LINK,
    retired_by=AllOf(Defines(_LOSS), Not(Calls(_LOSS, _RANGE))),
    requires=Calls(_LOSS, _RANGE),
)
def leave_out_missing_ranges(original: Callable[..., Result], *given: object, **named: object) -> Result:
    """Compute the fused loss. If torch has no NVTX, the loss is computed without NVTX ranges."""
    from .cuda import ignore_missing_nvtx

    ignore_missing_nvtx()
    return original(*given, **named)


def _with_fitting_blocks(name: str, compute: Callable[[], Result]) -> Result:
    try:
        return compute()
    except Exception as error:
        # The kernel is the first to be launched: nothing was computed, sent, or changed before it.
        if _OVERFLOW not in str(error) or not _shrink(name):
            raise
    blocks = BLOCKS[name]
    changed = ", ".join(f"{key}={side}" for key, side in blocks.ours.items() if side != blocks.upstreams[key])
    reporting.report(
        f"the blocks of verl's kernel {name} are too large for the compiler: it is launched with {changed}"
    )
    return compute()


def _shrink(name: str) -> bool:
    """Set the block sizes of a kernel to verl-npu's sizes. Return False without a change if the kernel does not have
    upstream's sizes."""
    kernel = vars(sys.modules[MODULE]).get(name)
    # Empty if the kernel is no longer autotuned.
    configurations: Sequence[Configuration] = getattr(kernel, "configs", ())
    if len(configurations) != 1 or configurations[0].kwargs != BLOCKS[name].upstreams:
        return False
    configurations[0].kwargs.update(BLOCKS[name].ours)
    return True
