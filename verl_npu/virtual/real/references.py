"""What the CPU says of torch_npu's own operators: the references of the virtual Ascend, under the wheel's schemas.

An operator that torch_npu differentiates by another operator, `…_backward` or `…_grad`, has that one here as well: it
is computed by differentiating the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from .. import operators
from ..operators.schemas import by_name

if TYPE_CHECKING:
    from ..operators.schemas import Operator

__all__ = ["NAMESPACE", "REFERENCES", "register"]

NAMESPACE = "verl_npu_reference"
_libraries: list[torch.library.Library] = []  # a library that is dropped takes its operators along


def register() -> tuple[str, ...]:
    """Define a reference for each operator of the loaded torch_npu that has one; return their names."""
    library = torch.library.Library(NAMESPACE, "DEF")
    _libraries.append(library)
    defined = []
    for name, function in REFERENCES.items():
        for overload, schema in _schemas(name):
            library.define(str(schema).removeprefix("npu::"))
            library.impl(f"{name}.{overload}" if overload else name, by_name(function, schema), "CPU")
            defined.append(schema.name)
    return tuple(defined)


def _schemas(name: str) -> list[tuple[str, torch.FunctionSchema]]:
    packet = getattr(torch.ops.npu, name, None)
    if packet is None:
        return []
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return [(overload._schema.overload_name, overload._schema) for overload in overloads]


def _forward(function: Operator) -> Operator:
    def call(**arguments: object) -> object:
        with torch.no_grad():
            return function(**arguments)

    return call


def _vjp(
    function: Callable[..., object], inputs: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Differentiate `function` at `inputs`; an input that is None has no gradient."""
    with torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient.to(output.dtype))
            for output, gradient in zip(outputs, gradients, strict=False)
            if isinstance(output, torch.Tensor) and output.requires_grad and gradient is not None
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
    given = [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]
    return [
        torch.zeros_like(leaf) if leaf is not None and leaf.requires_grad and gradient is None else gradient
        for leaf, gradient in zip(leaves, given, strict=True)
    ]


def _dtype_cast(**arguments: object) -> object:
    tensor, dtype = list(arguments.values())[:2]
    return tensor.to(dtype)  # type: ignore[attr-defined]  # the schema says that it is a tensor


def _rms_norm_backward(dy: torch.Tensor, self: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor) -> object:
    # The forward's epsilon is in rstd alone: rstd = 1 / sqrt(mean of squares + epsilon).
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean = x.float().pow(2).mean(-1, keepdim=True)
        epsilon = (rstd.float().pow(-2) - mean).detach()
        return (x.float() * torch.rsqrt(mean + epsilon) * weight.float()).to(x.dtype)

    dx, dgamma = _vjp(norm, [self, gamma], [dy])
    return dx, dgamma.float() if dgamma is not None else None


def _swiglu_backward(grad_output: torch.Tensor, self: torch.Tensor, dim: int = -1) -> object:
    return _vjp(lambda x: operators.npu_swiglu(x, dim), [self], [grad_output])[0]


def _fast_gelu_backward(grad: torch.Tensor, self: torch.Tensor) -> object:
    return _vjp(operators.npu_fast_gelu, [self], [grad])[0]


def _gelu_backward(grad_output: torch.Tensor, self: torch.Tensor, approximate: str = "none") -> object:
    return _vjp(lambda x: torch.nn.functional.gelu(x, approximate=approximate), [self], [grad_output])[0]


def _rotary_mul_backward(
    grad: torch.Tensor, self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> object:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return operators.npu_rotary_mul(x, cos, sin, rotary_mode)

    return tuple(_vjp(rotate, [self, r1, r2], [grad]))


def _cross_entropy_backward(
    grad_loss: torch.Tensor,
    log_prob: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    grad_zloss: torch.Tensor | None = None,
    lse_for_zloss: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> object:
    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )

    # log_softmax of log-probabilities is what they are: the gradient is that of the logits.
    return _vjp(loss, [log_prob], [grad_loss])[0]


def _permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> object:
    return _vjp(
        lambda x: operators.npu_moe_token_permute(x, indices, None, padded_mode)[0], [tokens], [grad_permuted_tokens]
    )[0]


def _unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> object:
    return tuple(
        _vjp(
            lambda rows, weights: operators.npu_moe_token_unpermute(rows, sorted_indices, probs=weights),
            [permuted_tokens, probs],
            [grad_unpermuted_tokens],
        )
    )


def _attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> object:
    passed = ("pse", "padding_mask", "atten_mask", "keep_prob", "pre_tockens", "next_tockens", "sparse_mode", "prefix")
    chosen = {name: options[name] for name in passed if name in options}
    chosen["scale"] = options.get("scale_value", 1.0)
    chosen |= {name: options.get(name) for name in ("actual_seq_qlen", "actual_seq_kvlen")}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return operators.npu_fusion_attention(q, k, v, head_num, input_layout, **chosen)[0]  # type: ignore[arg-type]

    return (*_vjp(attend, [query, key, value], [dy]), None, None)


def _matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    found = _vjp(torch.matmul, [self, other], [grad])
    return tuple(gradient if wanted else None for gradient, wanted in zip(found, mask, strict=True))


def _gather_backward(
    grad: torch.Tensor, self_size: Sequence[int], dim: int, index: torch.Tensor, sparse_grad: bool = False
) -> torch.Tensor:
    return torch.zeros(tuple(self_size), dtype=grad.dtype).scatter_add_(dim, index, grad)


REFERENCES: dict[str, Operator] = {
    **{name: _forward(getattr(operators, name)) for name in operators.__all__ if not name.endswith("_grad")},
    "_npu_dtype_cast": _dtype_cast,
    "_npu_dtype_cast_backward": _dtype_cast,
    "npu_dtype_cast_backward": _dtype_cast,
    "npu_cross_entropy_loss_backward": _cross_entropy_backward,
    "npu_fast_gelu_backward": _fast_gelu_backward,
    "npu_fusion_attention_grad": _attention_grad,
    "npu_fusion_attention_grad_v2": _attention_grad,
    "npu_gather_backward": _gather_backward,
    "npu_gelu_backward": _gelu_backward,
    "npu_moe_token_permute_grad": _permute_grad,
    "npu_moe_token_unpermute_grad": _unpermute_grad,
    "npu_rms_norm_backward": _rms_norm_backward,
    "npu_rotary_mul_backward": _rotary_mul_backward,
    "npu_swiglu_backward": _swiglu_backward,
}
