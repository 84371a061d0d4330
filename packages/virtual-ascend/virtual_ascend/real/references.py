"""The CPU references for torch_npu's own operators, under the schemas of the wheel.

torch_npu differentiates some operators with another operator, `…_backward` or `…_grad`. The reference of the second
operator differentiates the reference of the first. The order in this module is: fused attention, dropout with the mask
that torch_npu keeps, gradients, the routing of tokens to experts where it differs from the documentation, and the
table of all references.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch

from .. import operators
from ..operators.schemas import by_name, renamed

if TYPE_CHECKING:
    from ..operators.schemas import Operator

_RENAMED = {"pre_tokens": "pre_tockens", "next_tokens": "next_tockens", "scale_value": "scale"}
_ATTENTION = (
    "pse",
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
    """Convert the options of any version of the operator to the arguments of the reference."""
    renamed = {_RENAMED.get(name, name): value for name, value in options.items()}
    for name in ("query_rope", "key_rope", "padding_mask"):
        if renamed.get(name) is not None:
            raise NotImplementedError(f"npu_fusion_attention: virtual-ascend does not implement {name}")
    lengths = {name: value.tolist() for name, value in renamed.items() if name in _LENGTHS and is_tensor(value)}
    return {name: value for name, value in (renamed | lengths).items() if name in _ATTENTION}


_LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def attention(
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


def attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> tuple[object, ...]:
    chosen = _attention_options(options)

    pse = chosen.pop("pse", None)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        return operators.npu_fusion_attention(q, k, v, head_num, input_layout, pse=shift, **chosen)[0]  # type: ignore[arg-type]

    # The gradient of the shift, if there is one, comes fourth.
    return tuple(vjp(attend, [query, key, value, *([pse] if is_tensor(pse) else [])], [dy]))


def _generator() -> torch.Generator:
    """Return a generator that is seeded from the NPU generator's state, and independent of the CPU's generator."""
    npu = torch.npu.default_generators[torch.npu.current_device()]
    return torch.Generator().manual_seed(hash((npu.initial_seed(), npu.get_offset())) & 0x7FFF_FFFF)


def dropout(input: torch.Tensor, p: float) -> tuple[object, ...]:
    """Drop elements. Return the result and the mask. The mask has one bit for each element and is padded to a multiple
    of 128 bits."""
    kept = torch.rand(input.shape, generator=_generator()) >= p
    bits = torch.nn.functional.pad(kept.flatten().to(torch.uint8), (0, -kept.numel() % 128)).view(-1, 8)
    mask = (bits << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)
    return input * kept / (1 - p) if p < 1 else torch.zeros_like(input), mask


def dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    bits = (mask.flatten().unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    kept = bits.flatten()[: grad_output.numel()].view(grad_output.shape)
    return grad_output * kept / (1 - p) if p < 1 else torch.zeros_like(grad_output)


def vjp(
    function: Callable[..., object], inputs: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Differentiate `function` at `inputs`. An input that is None has no gradient."""
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


def permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> object:
    """Add up the gradients of each token's copies. If some copies were dropped, the kept copies are the first ones in
    the permuted order."""
    kept = grad_permuted_tokens.shape[0]
    return vjp(
        lambda x: operators.npu_moe_token_permute(x, indices, kept, padded_mode)[0], [tokens], [grad_permuted_tokens]
    )[0]


def permute_grad_v2(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # the wheel's own name
    padded_mode: bool = False,
) -> torch.Tensor:
    """Add up the gradients of each token's copies. `sorted_indices` contains the positions of the copies."""
    rows, width = grad_permuted_tokens.shape
    places = sorted_indices.long()
    there = (places < rows).unsqueeze(1)
    copies = grad_permuted_tokens.float()[places.clamp_max(rows - 1)] * there
    return copies.view(tokens_size_0, num_topK, width).sum(1).to(tokens_dtype)


def unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[object, ...]:
    """Add up the copies of each token. Return only the result, because torch_npu's wheel itself saves the tensors for
    the backward pass."""
    with torch.no_grad():
        return (operators.npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape),)


def unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[object, ...]:
    """Compute the gradients of `unpermute`."""

    def add_up(rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return operators.npu_moe_token_unpermute(rows, sorted_indices, probs=weights)

    return tuple(vjp(add_up, [permuted_tokens, probs], [grad_unpermuted_tokens]))


def unpermute_grad_v2(
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
    permuted_tokens: torch.Tensor | None = None,
) -> tuple[object, ...]:
    """Compute the gradients of `unpermute`. The permuted rows are needed only for the gradient of the weights. If
    there are no weights, the caller omits the rows."""
    rows = permuted_tokens
    if rows is None or rows.numel() == 0:
        shape = (permuted_tokens_size_0, grad_unpermuted_tokens.shape[-1])
        rows = torch.zeros(shape, dtype=permuted_tokens_dtype)
    return unpermute_grad(rows, grad_unpermuted_tokens, sorted_indices, probs)


NAMESPACE = "virtual_ascend_reference"
_libraries: list[torch.library.Library] = []  # a deleted library would take its operators along


def register() -> tuple[str, ...]:
    """Define reference implementations for the operators of the loaded torch_npu, and return the operators' names."""
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
            library.impl(called, _built_when_called(function, schema), "CPU")
            defined.append(f"{schema.name}.{schema.overload_name}")
    return tuple(defined)


def _overloads(namespace: str, name: str) -> list[torch._ops.OpOverload]:
    short, _, wanted = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    if packet is None:
        return []
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    # Variants that write into a result of the caller are omitted.
    return [o for o in overloads if o._schema.overload_name == wanted or (not wanted and not _writes(o._schema))]


def _built_when_called(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Return a reference with the operator's own argument names and results.

    The reference is built at its first call. Most references are never called, and building all of them would slow
    down each start.
    """

    @functools.cache
    def built() -> Operator:
        return _complete(by_name(_renaming(function, schema), schema), schema)

    def call(*arguments: object, **options: object) -> object:
        return built()(*arguments, **options)

    return call


def _renaming(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Adapt a function with an argument `input` to a version of the operator that calls this argument `self`."""
    is_input = any(argument.name == "input" for argument in schema.arguments)
    has_input = "input" in inspect.signature(function).parameters
    return renamed(function, {"input": "self"}) if has_input and not is_input else function


def _writes(schema: torch.FunctionSchema) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)


def _complete(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Allow a reference to omit the last results. torch_npu's own values then remain in these results."""
    # A result that is None is not written back.
    blanks = [0 if str(result.type) == "int" else None for result in schema.returns]

    def call(*arguments: object, **options: object) -> object:
        results = function(*arguments, **options)
        return (*results, *blanks[len(results) :]) if isinstance(results, tuple) and len(blanks) > 1 else results

    return call


def _forward(function: Operator) -> Operator:
    @functools.wraps(function)
    def call(**arguments: object) -> object:
        with torch.no_grad():
            return function(**arguments)

    return call


def _dtype_cast(dtype: int | torch.dtype, **tensors: object) -> torch.Tensor:
    # Each of the operators names the tensor differently. The other arguments are numbers.
    (tensor,) = (value for value in tensors.values() if is_tensor(value))
    return operators.npu_dtype_cast(tensor, dtype)


def _format_cast(input: torch.Tensor, acl_format: int, **options: object) -> torch.Tensor:
    """Copy the input. The wheel keeps track of formats, and the stub lays out every tensor by its strides."""
    return input.clone()


def _format_cast_in_place(input: torch.Tensor, acl_format: int, **options: object) -> torch.Tensor:
    return input


def _format_cast_from(input: torch.Tensor, src: torch.Tensor, **options: object) -> torch.Tensor:
    return input.copy_(src)


def _rms_norm_backward(dy: torch.Tensor, input: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor) -> object:
    # Only rstd contains the epsilon of the forward pass: rstd = 1 / sqrt(mean of squares + epsilon).
    normed = tuple(range(-gamma.dim(), 0))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean = x.float().pow(2).mean(normed, keepdim=True)
        epsilon = (rstd.float().pow(-2).view(mean.shape) - mean).detach()
        return (x.float() * torch.rsqrt(mean + epsilon) * weight.float()).to(x.dtype)

    dx, dgamma = vjp(norm, [input, gamma], [dy])
    return dx, dgamma.float() if dgamma is not None else None


def _layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Differentiate layer norm. The wheel keeps mean and rstd in float32, which the CPU's own kernel rejects."""
    normed = tuple(range(-len(normalized_shape), 0))
    rows = tuple(range(input.dim() - len(normalized_shape)))
    wide = torch.promote_types(input.dtype, torch.float32)
    grad, scale = grad_out.to(wide), rstd.to(wide)
    hat = (input.to(wide) - mean.to(wide)) * scale
    inner = grad if weight is None else grad * weight.to(wide)
    found = (
        (scale * (inner - inner.mean(normed, True) - hat * (inner * hat).mean(normed, True))).to(input.dtype),
        (grad * hat).sum(rows).to(input.dtype if weight is None else weight.dtype),
        grad.sum(rows).to(input.dtype if bias is None else bias.dtype),
    )
    return tuple(each if wanted else None for each, wanted in zip(found, output_mask, strict=True))


def _swiglu_backward(grad_output: torch.Tensor, input: torch.Tensor, dim: int = -1) -> object:
    return vjp(lambda x: operators.npu_swiglu(x, dim), [input], [grad_output])[0]


def _fast_gelu_backward(grad: torch.Tensor, input: torch.Tensor) -> object:
    return vjp(operators.npu_fast_gelu, [input], [grad])[0]


def _silu_backward(grad_output: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> object:
    return vjp(torch.nn.functional.silu, [x0], [grad_output])[0]


def _linear_backward(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> object:
    return tuple(vjp(torch.nn.functional.linear, [input, weight], [grad]))


def _batched_backward(which: int) -> Operator:
    """Return a function that computes the gradient of one factor of a batched product, in the factor's own shape."""

    def call(grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: Sequence[int]) -> object:
        factors = [mat1, mat2]

        def product(factor: torch.Tensor) -> torch.Tensor:
            return torch.matmul(*(factor if place == which else given for place, given in enumerate(factors)))

        (found,) = vjp(product, [factors[which]], [grad])
        return found if found is None else found.reshape(tuple(size))

    return call


def _gelu_backward(grad_output: torch.Tensor, input: torch.Tensor, approximate: str = "none") -> object:
    return vjp(lambda x: torch.nn.functional.gelu(x, approximate=approximate), [input], [grad_output])[0]


def _rotary_mul_backward(
    grad: torch.Tensor, input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> object:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return operators.npu_rotary_mul(x, cos, sin, rotary_mode)

    return tuple(vjp(rotate, [input, r1, r2], [grad]))


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

    # log_softmax leaves log-probabilities unchanged, so this is the gradient of the logits. The wheel's mean has a
    # dimension, torch's has none.
    given = grad_loss if reduction == "none" else grad_loss.reshape(())
    return vjp(loss, [log_prob], [given])[0]


def _softmax_backward(
    y_grad: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, scale: float, fixed_triu_mask: bool
) -> torch.Tensor:
    grad, out = y_grad.float(), y.float()
    return (scale * out * (grad - (grad * out).sum(-1, keepdim=True))).to(y_grad.dtype)


def _matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    found = vjp(torch.matmul, [self, other], [grad])
    return tuple(gradient if wanted else None for gradient, wanted in zip(found, mask, strict=True))


def _gather_backward(
    grad: torch.Tensor, self_size: Sequence[int], dim: int, index: torch.Tensor, sparse_grad: bool = False
) -> torch.Tensor:
    return torch.zeros(tuple(self_size), dtype=grad.dtype).scatter_add_(dim, index, grad)


def _wide(function: Callable[..., torch.Tensor]) -> Operator:
    """Return a function that computes a product whose result has a separate dtype."""

    def call(out_dtype: torch.dtype, **arguments: object) -> torch.Tensor:
        wide = {name: x.to(out_dtype) if is_tensor(x) else x for name, x in arguments.items()}
        return function(**{_PRODUCT.get(name, name): x for name, x in wide.items()})

    return call


_PRODUCT = {"self": "input"}
REFERENCES: dict[str, Operator] = {
    **{name: _forward(getattr(operators, name)) for name in operators.__all__ if name != "npu_fusion_attention_grad"},
    "aten::matmul_backward": _matmul_backward,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::mm.dtype": _wide(torch.mm),
    "aten::bmm.dtype": _wide(torch.bmm),
    "aten::addmm.dtype": _wide(torch.addmm),
    "aten::baddbmm.dtype": _wide(torch.baddbmm),
    "_npu_dropout": dropout,
    "npu_dropout_backward": dropout_backward,
    "npu_fusion_attention": attention,
    "npu_fusion_attention_v2": attention,
    "npu_fusion_attention_v3": attention,
    "npu_fusion_attention_grad_v3": attention_grad,
    "npu_format_cast": _format_cast,
    "npu_format_cast_": _format_cast_from,
    "npu_format_cast_.acl_format": _format_cast_in_place,
    "_npu_dtype_cast": _dtype_cast,
    "_npu_dtype_cast_backward": _dtype_cast,
    "npu_dtype_cast_backward": _dtype_cast,
    "npu_bmm_v2_mat1_backward": _batched_backward(0),
    "npu_bmm_v2_mat2_backward": _batched_backward(1),
    "npu_cross_entropy_loss_backward": _cross_entropy_backward,
    "npu_fast_gelu_backward": _fast_gelu_backward,
    "npu_fusion_attention_grad": attention_grad,
    "npu_fusion_attention_grad_v2": attention_grad,
    "npu_gather_backward": _gather_backward,
    "npu_gelu_backward": _gelu_backward,
    "npu_linear_backward": _linear_backward,
    "npu_moe_token_permute_grad": permute_grad,
    "npu_moe_token_permute_grad_v2": permute_grad_v2,
    "npu_moe_token_unpermute_grad": unpermute_grad,
    "npu_moe_token_unpermute_grad_v2": unpermute_grad_v2,
    "_npu_moe_token_unpermute": unpermute,
    "npu_scaled_masked_softmax_backward": _softmax_backward,
    "npu_rms_norm_backward": _rms_norm_backward,
    "npu_rotary_mul_backward": _rotary_mul_backward,
    "npu_silu_backward": _silu_backward,
    "npu_swiglu_backward": _swiglu_backward,
}
