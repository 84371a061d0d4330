"""What the CPU says of torch_npu's own operators: the references of the virtual Ascend, under the wheel's schemas.

An operator that torch_npu differentiates by another operator, `…_backward` or `…_grad`, has that one here as well: it
is computed by differentiating the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

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
        namespace, _, short = name.rpartition("::")
        for overload in _overloads(namespace or "npu", short):
            schema = overload._schema
            library.define(str(schema).partition("::")[2])
            called = schema.name.partition("::")[2]
            called += f".{schema.overload_name}" if schema.overload_name else ""
            library.impl(called, _complete(by_name(_renaming(function, schema), schema), schema), "CPU")
            defined.append(f"{schema.name}.{schema.overload_name}")
    return tuple(defined)


def _overloads(namespace: str, name: str) -> list[torch._ops.OpOverload]:
    short, _, wanted = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    if packet is None:
        return []
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    # Variants that write into a result of the caller's are another operator's.
    return [o for o in overloads if o._schema.overload_name == wanted or (not wanted and not _writes(o._schema))]


def _renaming(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Let a function that says `input` serve a version of the operator that says `self`."""
    names = {argument.name for argument in schema.arguments}
    if "input" in names or "input" not in inspect.signature(function).parameters:
        return function

    def call(**arguments: object) -> object:
        return function(**{"input" if name == "self" else name: value for name, value in arguments.items()})

    return call


def _writes(schema: torch.FunctionSchema) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)


def _complete(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Let a reference leave out the last results, which are then torch_npu's own."""
    # A result that is None is not written.
    blanks = [0 if str(result.type) == "int" else None for result in schema.returns]

    def call(*arguments: object, **options: object) -> object:
        results = function(*arguments, **options)
        return (*results, *blanks[len(results) :]) if isinstance(results, tuple) and len(blanks) > 1 else results

    return call


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


def _rms_norm_backward(dy: torch.Tensor, input: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor) -> object:
    # The forward's epsilon is in rstd alone: rstd = 1 / sqrt(mean of squares + epsilon).
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean = x.float().pow(2).mean(-1, keepdim=True)
        epsilon = (rstd.float().pow(-2) - mean).detach()
        return (x.float() * torch.rsqrt(mean + epsilon) * weight.float()).to(x.dtype)

    dx, dgamma = _vjp(norm, [input, gamma], [dy])
    return dx, dgamma.float() if dgamma is not None else None


def _swiglu_backward(grad_output: torch.Tensor, input: torch.Tensor, dim: int = -1) -> object:
    return _vjp(lambda x: operators.npu_swiglu(x, dim), [input], [grad_output])[0]


def _fast_gelu_backward(grad: torch.Tensor, input: torch.Tensor) -> object:
    return _vjp(operators.npu_fast_gelu, [input], [grad])[0]


def _gelu_backward(grad_output: torch.Tensor, input: torch.Tensor, approximate: str = "none") -> object:
    return _vjp(lambda x: torch.nn.functional.gelu(x, approximate=approximate), [input], [grad_output])[0]


def _rotary_mul_backward(
    grad: torch.Tensor, input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> object:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return operators.npu_rotary_mul(x, cos, sin, rotary_mode)

    return tuple(_vjp(rotate, [input, r1, r2], [grad]))


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


_RENAMED = {"pre_tokens": "pre_tockens", "next_tokens": "next_tockens", "scale_value": "scale"}
_ATTENTION = (
    "pse",
    "padding_mask",
    "atten_mask",
    "scale",
    "keep_prob",
    "pre_tockens",
    "next_tockens",
    "prefix",
    "actual_seq_qlen",
    "actual_seq_kvlen",
    "sparse_mode",
    "sink",
)


def _attention_options(options: dict[str, object]) -> dict[str, object]:
    """What the reference is told, of what any of the versions of the operator is."""
    renamed = {_RENAMED.get(name, name): value for name, value in options.items()}
    for name in ("query_rope", "key_rope"):
        if renamed.get(name) is not None:
            raise NotImplementedError(f"npu_fusion_attention: {name} is not implemented by the virtual Ascend")
    lengths = {name: value.tolist() for name, value in renamed.items() if name in _LENGTHS and _is_tensor(value)}
    return {name: value for name, value in (renamed | lengths).items() if name in _ATTENTION}


_LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> tuple[object, ...]:
    with torch.no_grad():
        chosen = _attention_options(options)
        return operators.npu_fusion_attention(query, key, value, head_num, input_layout, **chosen)[:4]  # type: ignore[arg-type]


def _attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> tuple[object, ...]:
    chosen = _attention_options(options)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return operators.npu_fusion_attention(q, k, v, head_num, input_layout, **chosen)[0]  # type: ignore[arg-type]

    return tuple(_vjp(attend, [query, key, value], [dy]))


def _generator() -> torch.Generator:
    """Random numbers that follow from the state of the NPU's generator, and leave the CPU's own alone."""
    npu = torch.npu.default_generators[torch.npu.current_device()]
    return torch.Generator().manual_seed(hash((npu.initial_seed(), npu.get_offset())) & 0x7FFF_FFFF)


def _dropout(input: torch.Tensor, p: float) -> tuple[object, ...]:
    """The mask has a bit for each element, in whole groups of 128."""
    kept = torch.rand(input.shape, generator=_generator()) >= p
    bits = torch.nn.functional.pad(kept.flatten().to(torch.uint8), (0, -kept.numel() % 128)).view(-1, 8)
    mask = (bits << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)
    return input * kept / (1 - p) if p < 1 else torch.zeros_like(input), mask


def _dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    bits = (mask.flatten().unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    kept = bits.flatten()[: grad_output.numel()].view(grad_output.shape)
    return grad_output * kept / (1 - p) if p < 1 else torch.zeros_like(grad_output)


def _matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    found = _vjp(torch.matmul, [self, other], [grad])
    return tuple(gradient if wanted else None for gradient, wanted in zip(found, mask, strict=True))


def _gather_backward(
    grad: torch.Tensor, self_size: Sequence[int], dim: int, index: torch.Tensor, sparse_grad: bool = False
) -> torch.Tensor:
    return torch.zeros(tuple(self_size), dtype=grad.dtype).scatter_add_(dim, index, grad)


def _wide(function: Callable[..., torch.Tensor]) -> Operator:
    """A product whose result has a type of its own."""

    def call(out_dtype: torch.dtype, **arguments: object) -> torch.Tensor:
        wide = {name: x.to(out_dtype) if _is_tensor(x) else x for name, x in arguments.items()}
        return function(**{_PRODUCT.get(name, name): x for name, x in wide.items()})

    return call


_PRODUCT = {"self": "input"}


REFERENCES: dict[str, Operator] = {
    **{name: _forward(getattr(operators, name)) for name in operators.__all__ if not name.endswith("_grad")},
    "aten::matmul_backward": _matmul_backward,
    "aten::mm.dtype": _wide(torch.mm),
    "aten::bmm.dtype": _wide(torch.bmm),
    "aten::addmm.dtype": _wide(torch.addmm),
    "aten::baddbmm.dtype": _wide(torch.baddbmm),
    "_npu_dropout": _dropout,
    "npu_dropout_backward": _dropout_backward,
    "npu_fusion_attention": _attention,
    "npu_fusion_attention_v2": _attention,
    "npu_fusion_attention_v3": _attention,
    "npu_fusion_attention_grad_v3": _attention_grad,
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
