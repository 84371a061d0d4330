"""The operators of dense layers: activations, norms, rotary embeddings, losses, matrix products, and the optimizer.

Activations: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_swiglu.md, torch_npu-npu_gelu.md,
torch_npu-npu_scaled_masked_softmax.md and torch_npu-npu_fast_gelu.md.

RMS norms: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rms_norm.md and torch_npu-npu_add_rms_norm.md.

Rotary position embeddings: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rotary_mul.md,
torch_npu-npu_apply_rotary_pos_emb.md and torch_npu-npu_mrope.md.

npu_cross_entropy_loss: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_cross_entropy_loss.md.

npu_apply_adam_w: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_apply_adam_w.md.

Matrix products: op-plugin, op_plugin/ops/aclops/BmmV2KernelNpu.cpp and the pages of npu_linear and
npu_transpose_batchmatmul.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .fused import Result, fused, is_fusible
from .gradient import without_formula

_NONE = slice(0)
"""The gradients of these operators need no result."""


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`silu(first half) * second half` along `dim`, computed in float32. Differentiable.

    Shapes: x [.., 2*H, ..] -> [.., H, ..].

    Raises:
        RuntimeError: the dimension's size is odd.
    """
    if input.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: the size of dimension {dim} must be even, but is {input.shape[dim]}")

    def compute(x: Tensor) -> tuple[Tensor]:
        gate, up = x.float().chunk(2, dim=dim)
        return ((functional.silu(gate) * up).to(x.dtype),)

    if not is_fusible((input,)):
        return compute(input)[0]
    shape = list(input.shape)
    shape[dim] //= 2
    return fused("npu_swiglu", compute, (Result(shape, input.dtype),), (input,), keep=_NONE)[0]


def npu_silu(input: Tensor) -> Tensor:
    """`x * sigmoid(x)` for tensors of any shape. Differentiable."""
    return functional.silu(input)


def npu_gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU for tensors of any shape. `approximate` is "none" (erf) or "tanh". Differentiable.

    Raises:
        RuntimeError: `approximate` is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"npu_gelu: approximate should be none or tanh, but got {approximate!r}")
    return functional.gelu(input, approximate=approximate)


def npu_fast_gelu(input: Tensor) -> Tensor:
    """`x * sigmoid(1.702 x)` for tensors of any shape, computed in float32. Differentiable."""

    def compute(given: Tensor) -> tuple[Tensor]:
        x = given.float()
        return ((x * (1.702 * x).sigmoid()).to(given.dtype),)

    if not is_fusible((input,)):
        return compute(input)[0]
    return fused("npu_fast_gelu", compute, (Result(input.shape, input.dtype),), (input,), keep=_NONE)[0]


def fast_gelu(input: Tensor) -> Tensor:
    """The operator `npu_fast_gelu` under its earlier name."""
    return npu_fast_gelu(input)


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1) -> Tensor:
    """Softmax over the last dimension of `scale * x`, computed in float32. Differentiable in x.

    A score is set to -10000 if its mask is true.

    Shapes: x [.., H, W], mask broadcastable to the shape of x.

    Raises:
        RuntimeError: the mask is not bool, or H or W is not a multiple of 32 from 32 to 4096.
    """
    if mask.dtype != torch.bool:
        raise RuntimeError(f"npu_scaled_masked_softmax: mask must be bool, but is {mask.dtype}")
    if x.dim() < 2 or any(size % 32 or not 32 <= size <= 4096 for size in x.shape[-2:]):
        raise RuntimeError(
            "npu_scaled_masked_softmax: the last two dimensions must be multiples of 32 from 32 to 4096, but x has "
            f"shape {list(x.shape)}"
        )
    return (x.float() * scale).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`x * rsqrt(mean(x^2) + epsilon) * gamma`, computed in float32 and rounded once. Differentiable.

    Shapes: x [*, D...], gamma [D...] (the last dimensions of x).

    Returns:
        (y [*, D...] of x's dtype, rstd float32 [*, 1...]).

    Raises:
        RuntimeError: gamma does not have the shape of x's last dimensions, or the dtypes do not match.
    """
    _check("npu_rms_norm", input, gamma)

    def compute(input: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        dims = tuple(range(input.dim() - gamma.dim(), input.dim()))
        x = input.float()
        rstd = torch.rsqrt(x.pow(2).mean(dim=dims, keepdim=True) + epsilon)
        return (x * rstd * gamma.float()).to(input.dtype), rstd.detach()

    if not is_fusible((input, gamma)):
        return compute(input, gamma)
    rows = Result((*input.shape[: input.dim() - gamma.dim()], *[1] * gamma.dim()), torch.float32)
    y, rstd = fused(
        "npu_rms_norm", compute, (Result(input.shape, input.dtype), rows), (input, gamma), keep=slice(1, None)
    )
    return y, rstd


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """`npu_rms_norm(x1 + x2, gamma)`. Has no backward pass.

    Shapes: x1 and x2 [*, D...], gamma [D...].

    Returns:
        (y, rstd, x1 + x2).

    Raises:
        RuntimeError: shapes or dtypes do not match, or the backward pass is run.
    """
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        raise RuntimeError(
            f"npu_add_rms_norm: x1 and x2 must have the same shape and dtype, but x1 has shape {tuple(x1.shape)} and "
            f"dtype {x1.dtype}, and x2 has shape {tuple(x2.shape)} and dtype {x2.dtype}"
        )

    def compute() -> tuple[Tensor, ...]:
        x = x1 + x2
        return (*npu_rms_norm(x, gamma, epsilon), x)

    y, rstd, x = without_formula("npu_add_rms_norm", (x1, x2, gamma), compute)
    return y, rstd, x


def _check(name: str, x: Tensor, gamma: Tensor) -> None:
    if gamma.dim() == 0 or x.shape[-gamma.dim() :] != gamma.shape:
        raise RuntimeError(
            f"{name}: the shape of gamma must match the last dimensions of x, but gamma has shape "
            f"{tuple(gamma.shape)}, and x has shape {tuple(x.shape)}"
        )
    half = (torch.float16, torch.bfloat16)
    if x.dtype not in (*half, torch.float32) or not (
        x.dtype == gamma.dtype or (x.dtype in half and gamma.dtype is torch.float32)
    ):
        raise RuntimeError(
            f"{name}: x and gamma must have the same dtype (fp16, bf16, or fp32), or gamma must be fp32 and x must be "
            f"fp16 or bf16, but x is {x.dtype}, and gamma is {gamma.dtype}"
        )


WIDEST = 896


def npu_rotary_mul(input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """`x * r1 + rotate(x) * r2`. Differentiable.

    Shapes: x [B,N,S,D] or [B,S,N,D]. r1 (cosines) and r2 (sines) have the same dimensions, with the full width D;
    dimensions of size 1 are broadcast. If `rotary_mode` is "half", rotate(x) is cat(-x2, x1) of the halves x1 and x2.
    If it is "interleave", rotate(x) replaces each pair (a, b) of adjacent elements with (-b, a).

    Raises:
        RuntimeError: a tensor does not have 4 dimensions, D is odd or not less than 896, r1 or r2 has another width,
            or the mode is unknown.
    """
    width = input.shape[-1]
    if input.dim() != 4 or r1.dim() != 4 or r2.dim() != 4:
        raise RuntimeError(
            f"npu_rotary_mul: x, r1, and r2 must each have 4 dimensions, but have {input.dim()}, {r1.dim()}, and "
            f"{r2.dim()} dimensions"
        )
    if width % 2 or width >= WIDEST:
        raise RuntimeError(f"npu_rotary_mul: the last dimension must be even and below {WIDEST}, but is {width}")
    if r1.shape != r2.shape or r1.shape[-1] != width:
        raise RuntimeError(
            f"npu_rotary_mul: r1 and r2 must have the full width {width}, but their shapes are {tuple(r1.shape)} and "
            f"{tuple(r2.shape)}"
        )

    def compute(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
        return ((x * cos + _rotated("npu_rotary_mul", x, rotary_mode) * sin).to(x.dtype),)

    given = (input, r1, r2)
    shape = torch.broadcast_shapes(input.shape, r1.shape)
    if shape != input.shape or not is_fusible(given):
        return compute(*given)[0]
    return fused("npu_rotary_mul", compute, (Result(shape, input.dtype),), given, keep=slice(0))[0]


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """Apply `npu_rotary_mul` to query and key. Has no backward pass.

    Shapes: query [B,S,N,D], key [B,S,Nkv,D], cos and sin [B,S,1,D] in the BSND layout, which was earlier called BSH.
    In the layouts SBH, BNSD, and TND ([T,N,D]), cos and sin can have any shape that can be broadcast to query and key.

    Raises:
        RuntimeError: the layout or the mode is unknown, the widths differ, or the backward pass is run.
    """
    layouts = ("BSH", "BSND", "SBH", "SBND", "BNSD", "TND")
    if layout not in layouts:
        raise RuntimeError(f"npu_apply_rotary_pos_emb: layout should be {'/'.join(layouts)}, but got {layout!r}")
    if not query.shape[-1] == key.shape[-1] == cos.shape[-1] == sin.shape[-1]:
        raise RuntimeError(
            "npu_apply_rotary_pos_emb: query, key, cos, and sin must have the same width, but their widths are "
            f"{query.shape[-1]}, {key.shape[-1]}, {cos.shape[-1]}, {sin.shape[-1]}"
        )

    def compute() -> tuple[Tensor, ...]:
        name = "npu_apply_rotary_pos_emb"
        return tuple((x * cos + _rotated(name, x, rotary_mode) * sin).to(x.dtype) for x in (query, key))

    turned, turned_key = without_formula("npu_apply_rotary_pos_emb", (query, key, cos, sin), compute)
    return turned, turned_key


def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Rotate the first R columns of each head of query and key by their positions. Has no backward pass. Images have
    three positions for each token.

    Shapes: positions int32 or int64 [T] or [3,T], query [T,N*head_size], key [T,Nkv*head_size], cos_sin_cache
    [positions,R]: cosines, then sines. For positions [3,T], mrope_section contains the number of angles that use each
    of the three rows. The numbers add up to R/2. For positions [T], mrope_section is [0,0,0].

    Raises:
        RuntimeError: shapes, dtypes, or sections do not match, or the backward pass is run.
        NotImplementedError: cache_mode is not "default".
    """
    name = "npu_mrope"
    if cache_mode not in (None, "default"):
        raise NotImplementedError(f"{name}: virtual-ascend does not implement cache_mode {cache_mode}")
    sections = list(mrope_section or (0, 0, 0))
    half = cos_sin_cache.shape[-1] // 2
    if positions.dim() == 1:
        fit = sections == [0, 0, 0]
    else:
        fit = positions.dim() == 2 and len(positions) == len(sections) == 3 and sum(sections) == half
    if not fit or positions.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(
            f"{name}: expected integer positions of shape [T] and mrope_section [0,0,0], or integer positions of "
            f"shape [3,T] and sections that add up to {half}, but got positions with dtype {positions.dtype} and "
            f"shape {tuple(positions.shape)}, and mrope_section {sections}"
        )
    for what, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 2 or tensor.shape[1] % head_size or tensor.dtype != cos_sin_cache.dtype:
            raise RuntimeError(
                f"{name}: {what} must have shape [tokens, heads * {head_size}] and dtype {cos_sin_cache.dtype}, but "
                f"has shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
            )

    def compute() -> tuple[Tensor, ...]:
        cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
        if positions.dim() == 2:
            cos, sin = (
                torch.cat([part[row] for row, part in enumerate(table.split(sections, dim=-1))], dim=-1)
                for table in (cos, sin)
            )
        mode = rotary_mode or "half"
        full = [
            torch.cat((table, table), dim=-1) if mode == "half" else table.repeat_interleave(2, dim=-1)
            for table in (cos, sin)
        ]

        def turned(x: Tensor) -> Tensor:
            heads = x.unflatten(1, (-1, head_size))
            first, rest = heads.split([2 * half, head_size - 2 * half], dim=-1)
            of_cos, of_sin = (table.unsqueeze(1) for table in full)
            first = (first * of_cos + _rotated(name, first, mode) * of_sin).to(x.dtype)
            return torch.cat((first, rest), dim=-1).flatten(1)

        return turned(query), turned(key)

    turned_query, turned_key = without_formula(name, (query, key, cos_sin_cache), compute)
    return turned_query, turned_key


def _rotated(operator: str, x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    raise RuntimeError(f"{operator}: rotary_mode should be half or interleave, but got {mode!r}")


def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross entropy, computed in float32. The loss is differentiable, and log_prob is not.

    Shapes: input [N,C], target [N], weight [C].

    Returns:
        (loss [N] or, for "mean" and "sum", [1]; log_prob [N,C]; zloss [0]; lse_for_zloss [0]).

    Raises:
        RuntimeError: the shapes or the reduction are invalid.
        NotImplementedError: label smoothing or zloss is requested. The real operator's documentation marks these
            arguments as reserved.
    """
    if input.dim() != 2 or target.shape != input.shape[:1]:
        raise RuntimeError(
            f"npu_cross_entropy_loss: expected input [N,C] and target [N], but got shapes {tuple(input.shape)} and "
            f"{tuple(target.shape)}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise RuntimeError(f"npu_cross_entropy_loss: reduction should be mean, sum or none, but got {reduction!r}")
    if label_smoothing or lse_square_scale_for_zloss or return_zloss:
        raise NotImplementedError(
            "npu_cross_entropy_loss: virtual-ascend does not implement label_smoothing, lse_square_scale_for_zloss, "
            "or return_zloss"
        )

    def compute(input: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob = torch.log_softmax(input.float(), dim=-1)
        weights = None if weight is None else weight.float()
        loss = functional.nll_loss(log_prob, target, weight=weights, reduction=reduction, ignore_index=ignore_index)
        return loss.reshape(-1).to(input.dtype), log_prob.detach().to(input.dtype)

    if is_fusible((input, target, weight)):
        losses = Result((input.shape[0] if reduction == "none" else 1,), input.dtype)
        # The real operator also computes its gradient from log_prob, which equals its own log_softmax.
        loss, log_prob = fused(
            "npu_cross_entropy_loss",
            compute,
            (losses, Result(input.shape, input.dtype)),
            (input, target, weight),
            keep=slice(0),
            instead=1,
        )
    else:
        loss, log_prob = compute(input, target, weight)
    empty = input.new_empty(0)
    return loss, log_prob, empty, empty.clone()


def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool,
    maximize: bool,
    *,
    out: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one AdamW step in place on `out` = (parameter, first moment, second moment), which all have grad's shape.
    Has no backward pass.

    The operator multiplies beta1_power by beta1 and beta2_power by beta2 before it uses them, so pass beta**(step-1).

    Raises:
        NotImplementedError: amsgrad or max_grad_norm is passed.
    """
    if amsgrad or max_grad_norm is not None:
        raise NotImplementedError("npu_apply_adam_w: virtual-ascend does not implement amsgrad or max_grad_norm")
    parameter, first, second = out
    with torch.no_grad():
        gradient = -grad if maximize else grad
        first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second / (1 - beta2_power * beta2)).sqrt_().add_(epsilon)
        parameter.mul_(1 - lr * weight_decay)
        parameter.addcdiv_(first, scale, value=-lr / (1 - beta1_power * beta1))
    return out


def npu_bmmV2(input: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """`input @ mat2` with broadcast batch dimensions. Differentiable.

    If `output_sizes` is not empty, the product is summed over the batch dimensions that have size 1 in `output_sizes`.
    The gradient of this operator requires this sum.

    Shapes: [.., M, K] x [.., K, N] -> [.., M, N].

    Raises:
        RuntimeError: the shapes do not match, or the product cannot be summed to `output_sizes`.
    """
    product = input.matmul(mat2)
    if not output_sizes or list(product.shape) == list(output_sizes):
        return product
    summed: Tensor = product.sum_to_size(*output_sizes)
    return summed


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight^T + bias`. Differentiable.

    Shapes: [M, K], [N, K], [N] -> [M, N].

    Raises:
        RuntimeError: input or weight is not a matrix.
    """
    if input.dim() != 2 or weight.dim() != 2:
        found = f"{input.dim()} and {weight.dim()} dimensions"
        raise RuntimeError(f"npu_linear: input and weight must have 2 dimensions, but have {found}")
    return functional.linear(input, weight, bias)


def npu_transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """Return the matrix product of each batch, with the batch dimension after the rows. Has no backward pass.

    Shapes: input [B,M,K], or [M,B,K] with perm_x1 [1,0,2], weight [B,K,N] -> [M,B,N], or [factor, M, B*N/factor] if
    batch_split_factor is greater than 1. K and N are multiples of 16.

    Raises:
        RuntimeError: the operator's documentation does not allow a shape, dtype, permutation, or factor, or the
            backward pass is run.
    """
    name, factor = "npu_transpose_batchmatmul", batch_split_factor or 1
    if bias is not None:
        raise RuntimeError(f"{name}: bias is not supported")
    for what, found, allowed in (
        ("perm_x1", perm_x1, ((0, 1, 2), (1, 0, 2))),
        ("perm_x2", perm_x2, ((0, 1, 2),)),
        ("perm_y", perm_y, ((1, 0, 2),)),
    ):
        if found is not None and tuple(found) not in allowed:
            raise RuntimeError(
                f"{name}: {what} must be the permutation {' or '.join(map(str, allowed))}, but is {tuple(found)}"
            )
    if input.dtype not in (torch.float16, torch.bfloat16, torch.float32) or weight.dtype != input.dtype:
        raise RuntimeError(
            f"{name}: input and weight must be float16, bfloat16 or float32, but are {input.dtype} and {weight.dtype}"
        )
    rows = input.transpose(0, 1) if perm_x1 is not None and tuple(perm_x1) == (1, 0, 2) else input
    if rows.dim() != 3 or weight.dim() != 3 or rows.shape[::2] != weight.shape[:2]:
        raise RuntimeError(
            f"{name}: expected shapes [B,M,K] and [B,K,N], but got {tuple(rows.shape)} and {tuple(weight.shape)}"
        )
    if weight.shape[1] % 16 or weight.shape[2] % 16 or weight.shape[2] % factor:
        raise RuntimeError(
            f"{name}: K and N must be multiples of 16, and N must be a multiple of batch_split_factor, but weight "
            f"has shape {tuple(weight.shape)}, and the factor is {factor}"
        )

    def compute() -> tuple[Tensor, ...]:
        product = torch.bmm(rows, weight).transpose(0, 1)
        return (product.flatten(1).unflatten(1, (factor, -1)).transpose(0, 1) if factor > 1 else product,)

    (product,) = without_formula(name, (input, weight), compute)
    return product
