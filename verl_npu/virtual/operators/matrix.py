"""Products of matrices: op-plugin, op_plugin/ops/aclops/BmmV2KernelNpu.cpp and the pages of npu_linear and
npu_transpose_batchmatmul."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .gradient import without_formula


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


def npu_transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """The product of each batch, with the batch behind the rows; no gradient.

    Shapes: input [B,M,K], or [M,B,K] with perm_x1 [1,0,2], weight [B,K,N] -> [M,B,N], or [factor, M, B*N/factor] with
    a batch_split_factor above 1. K and N are multiples of 16.

    Raises:
        RuntimeError: shapes, dtypes, permutations or a factor that the page rules out, and in backward.
        NotImplementedError: quantisation by `scale`.
    """
    name, factor = "npu_transpose_batchmatmul", batch_split_factor or 1
    if scale is not None:
        raise NotImplementedError(f"{name}: scale is not implemented by the virtual Ascend")
    if bias is not None:
        raise RuntimeError(f"{name}: bias is not supported")
    for what, found, allowed in (
        ("perm_x1", perm_x1, ((0, 1, 2), (1, 0, 2))),
        ("perm_x2", perm_x2, ((0, 1, 2),)),
        ("perm_y", perm_y, ((1, 0, 2),)),
    ):
        if found is not None and tuple(found) not in allowed:
            raise RuntimeError(f"{name}: {what} must be {' or '.join(map(str, allowed))}, but is {tuple(found)}")
    if input.dtype not in (torch.float16, torch.bfloat16, torch.float32) or weight.dtype != input.dtype:
        raise RuntimeError(
            f"{name}: input and weight must be float16, bfloat16 or float32, but are {input.dtype} and {weight.dtype}"
        )
    rows = input.transpose(0, 1) if perm_x1 is not None and tuple(perm_x1) == (1, 0, 2) else input
    if rows.dim() != 3 or weight.dim() != 3 or rows.shape[::2] != weight.shape[:2]:
        raise RuntimeError(
            f"{name}: expected [B,M,K] and [B,K,N], but got {tuple(rows.shape)} and {tuple(weight.shape)}"
        )
    if weight.shape[1] % 16 or weight.shape[2] % 16 or weight.shape[2] % factor:
        raise RuntimeError(
            f"{name}: K and N must be multiples of 16, and N one of batch_split_factor, but weight is "
            f"{tuple(weight.shape)} and the factor {factor}"
        )

    def compute() -> tuple[Tensor, ...]:
        product = torch.bmm(rows, weight).transpose(0, 1)
        return (product.flatten(1).unflatten(1, (factor, -1)).transpose(0, 1) if factor > 1 else product,)

    (product,) = without_formula(name, (input, weight), compute)
    return product
