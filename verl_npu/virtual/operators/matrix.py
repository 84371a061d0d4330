"""Products of matrices: op-plugin, op_plugin/ops/aclops/BmmV2KernelNpu.cpp and the page of npu_linear."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def npu_bmmV2(input: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """`input @ mat2`, batches broadcast; if `output_sizes` are given, summed over the batches that have size 1
    there (what its own gradient asks for); differentiable.

    Shapes: [.., M, K] x [.., K, N] -> [.., M, N].

    Raises:
        RuntimeError: the shapes do not fit, or `output_sizes` are none that the product can be summed to.
    """
    product = input.matmul(mat2)
    if not output_sizes or list(product.shape) == list(output_sizes):
        return product
    summed: Tensor = product.sum_to_size(*output_sizes)
    return summed


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight^T + bias`; differentiable.

    Shapes: [M, K], [N, K], [N] -> [M, N].

    Raises:
        RuntimeError: input or weight is not a matrix.
    """
    if input.dim() != 2 or weight.dim() != 2:
        found = f"{input.dim()} and {weight.dim()} dimensions"
        raise RuntimeError(f"npu_linear: expected input and weight of 2 dimensions, but got {found}")
    return functional.linear(input, weight, bias)
