"""`torch_npu.distributed`: HCCL's additions to torch.distributed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import distributed

from torch_npu._unimplemented import missing

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, ReduceOp, Work

__all__ = ["all_gather_into_tensor_uneven", "is_hccl_available", "reduce_scatter_tensor_uneven"]


def is_hccl_available() -> bool:
    """Return True, because virtual NPUs always have HCCL."""
    return True


def all_gather_into_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Gather parts of different lengths along the first dimension. Without `output_split_sizes`, all parts have the
    same length.

    Shapes: input [length of this rank's part, ..], output [total length of all parts, ..].

    Returns:
        The work handle to wait for if `async_op` is set. Otherwise, None.

    Raises:
        RuntimeError: the sizes do not match.
    """
    if not _on_npus(output, input):
        return None
    size = distributed.get_world_size(group)
    sizes = _splits("output", output_split_sizes, output, size)
    if sizes[distributed.get_rank(group)] != input.size(0):
        raise RuntimeError(f"expected an input of {sizes[distributed.get_rank(group)]} rows; found {input.size(0)}")
    return distributed.all_gather(list(output.split(sizes)), input, group, async_op)


def reduce_scatter_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    op: ReduceOp | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the input, and scatter parts of different lengths along the first dimension.

    Without `input_split_sizes`, all parts have the same length.

    Shapes: input [total length of all parts, ..], output [length of this rank's part, ..].

    Returns:
        The work handle to wait for if `async_op` is set. Otherwise, None.

    Raises:
        RuntimeError: the sizes do not match.
    """
    if not _on_npus(output, input):
        return None
    sizes = _splits("input", input_split_sizes, input, distributed.get_world_size(group))
    op = distributed.ReduceOp.SUM if op is None else op
    return distributed.reduce_scatter(output, list(input.split(sizes)), op, group, async_op)


def _on_npus(*tensors: torch.Tensor) -> bool:
    if all(tensor.device.type == "npu" for tensor in tensors):
        return True
    warnings.warn("Support for Tensors is limited to those of type npu", stacklevel=3)
    return False


def _splits(which: str, sizes: list[int] | None, tensor: torch.Tensor, size: int) -> list[int]:
    if not sizes:
        if tensor.size(0) % size:
            raise RuntimeError(f"the {which}'s dim 0 does not divide equally across group size")
        return [tensor.size(0) // size] * size
    if len(sizes) != size:
        raise RuntimeError(f"Number of tensor splits not equal to group size: {len(sizes)} splits, group size {size}")
    if sum(sizes) != tensor.size(0):
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: split sizes {sizes}, dim 0 size {tensor.size(0)}"
        )
    return list(sizes)


globals().update(missing("torch_npu.distributed", globals()))
