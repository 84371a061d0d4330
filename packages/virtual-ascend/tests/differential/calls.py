"""The operator calls that both torch_npus get: valid ones by hand, and bad ones made from them.

A tensor is described and not made here, so that a call can be changed, named and sent to another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

FLOATS = ("float32", "float16", "bfloat16")
FLOAT = "float"
"""A placeholder for each of FLOATS in turn."""


@dataclass(frozen=True, slots=True)
class T:
    """A tensor; without `values` it holds random numbers, or zeros if it is not of a floating-point type."""

    shape: tuple[int, ...]
    dtype: str = FLOAT
    values: tuple[float, ...] | None = None
    device: str = "npu:0"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `torch_npu.<operator>`."""

    operator: str
    label: str
    valid: bool
    args: tuple[object, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


def ints(*values: int, dtype: str = "int64") -> T:
    """Return a vector of whole numbers."""
    return T((len(values),), dtype, tuple(values))


def _valid() -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    x, square = T((4, 32)), T((1, 2, 16, 64))
    yield from ((name, (x,), {}) for name in ("fast_gelu", "npu_fast_gelu", "npu_silu", "npu_gelu"))
    yield "npu_gelu", (x,), {"approximate": "tanh"}
    yield from (("npu_swiglu", (x, dim), {}) for dim in (-1, 1, 0))
    yield "npu_swiglu", (T((2, 3, 8)),), {}
    yield "npu_rms_norm", (x, T((32,))), {}
    yield "npu_rms_norm", (T((2, 3, 8)), T((8,)), 1e-5), {}
    yield "npu_rms_norm", (T((2, 3, 8)), T((3, 8)), 1e-5), {}
    yield "npu_rms_norm", (x, T((32,), "float32")), {}
    yield "npu_add_rms_norm", (x, x, T((32,))), {}
    yield "npu_linear", (x, T((8, 32)), T((8,))), {}
    yield "npu_linear", (x, T((8, 32))), {}
    yield "npu_bmmV2", (T((2, 3, 4)), T((2, 4, 5)), []), {}
    yield "npu_bmmV2", (T((2, 3, 4)), T((2, 4, 5)), [2, 3, 5]), {}
    yield "npu_dtype_cast", (x, 5), {}
    yield "npu_dtype_cast", (x, 6), {}
    yield "npu_format_cast", (T((16, 16)), 2), {}
    yield "npu_format_cast", (T((16, 16)), 29), {}
    yield "npu_format_cast_", (T((16, 16)), 2), {}
    yield "npu_scaled_masked_softmax", (T((2, 2, 32, 64)), T((2, 1, 32, 64), "bool"), 0.5), {}
    yield "npu_scaled_masked_softmax", (T((2, 2, 32, 64)), T((2, 1, 32, 64), "bool"), 0.5, False), {}
    for reduction in ("mean", "sum", "none"):
        yield "npu_cross_entropy_loss", (x, ints(1, 2, 3, 0)), {"reduction": reduction}
    yield "npu_cross_entropy_loss", (x, ints(1, 2, 3, 0), T((32,), "float32", (1.0,) * 32)), {}
    yield "npu_apply_adam_w", (
        0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-6, x, None, False, False,
    ), {"out": [x, x, T((4, 32), FLOAT, (1.0,) * 128)]}  # fmt: skip
    yield from _rotary()
    yield from _attention(square)
    yield from _experts(x)
    yield from _grouped()
    yield from _inference()


def _rotary() -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    x, angle = T((1, 2, 4, 64)), T((1, 1, 4, 64))
    yield "npu_rotary_mul", (x, angle, angle), {}
    yield "npu_rotary_mul", (x, angle, angle, "half"), {}
    yield "npu_rotary_mul", (x, angle, angle, "interleave"), {}
    query, key, table = T((2, 4, 4, 128)), T((2, 4, 2, 128)), T((2, 4, 1, 128))
    yield "npu_apply_rotary_pos_emb", (query, key, table, table), {}


def _attention(square: T) -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    name, mask = "npu_fusion_attention", T((2048, 2048), "bool")
    yield name, (square, square, square, 2, "BNSD"), {"scale": 0.125}
    yield name, (T((1, 4, 16, 64)), square, square, 4, "BNSD"), {}
    yield name, (T((2, 4, 2, 8)),) * 3 + (2, "BSND"), {}
    yield name, (T((2, 4, 16)),) * 3 + (2, "BSH"), {}
    yield name, (T((4, 2, 16)),) * 3 + (2, "SBH"), {}
    packed = {"actual_seq_qlen": [3, 6], "actual_seq_kvlen": [3, 6]}
    yield name, (T((6, 2, 8)),) * 3 + (2, "TND"), packed
    for mode in (2, 3, 4):
        yield name, (T((6, 2, 8)),) * 3 + (2, "TND"), {**packed, "atten_mask": mask, "sparse_mode": mode}
    yield name, (square,) * 3 + (2, "BNSD"), {"atten_mask": T((16, 16), "bool"), "pre_tockens": 9, "next_tockens": 0}
    yield name, (square,) * 3 + (2, "BNSD"), {"pse": T((1, 2, 16, 16))}
    row = T((1, 2, 16, 8), "float32", (1.0,) * 256)
    yield "npu_fusion_attention_grad", (square,) * 4 + (2, "BNSD"), {
        "softmax_max": row, "softmax_sum": row, "attention_in": square, "scale_value": 0.125,
    }  # fmt: skip
    row = T((4, 2, 8), "float32", (1.0,) * 64)
    yield "npu_ring_attention_update", (T((4, 2, 16)), row, row, T((4, 2, 16)), row, row), {}
    for kind in (0, 1):
        yield "npu_attention_update", ([T((6,), "float32")] * 2, [T((6, 16))] * 2, kind), {}
    name, few = "npu_fused_infer_attention_score", T((2, 4, 16))
    yield name, (few,) * 3, {"num_heads": 2, "input_layout": "BSH"}
    yield name, (square,) * 3, {"num_heads": 2, "input_layout": "BNSD", "scale": 0.3, "softmax_lse_flag": True}
    lengths = {"actual_seq_lengths": [3, 6], "actual_seq_lengths_kv": [3, 6]}
    yield name, (T((6, 2, 8)),) * 3, {"num_heads": 2, "input_layout": "TND", **lengths}
    paged = {"block_table": ints(0, 1, dtype="int32"), "block_size": 128, "actual_seq_lengths_kv": [5, 3]}
    paged["block_table"] = T((2, 1), "int32", (0, 1))
    yield name, (T((2, 1, 16)), T((2, 128, 16)), T((2, 128, 16))), {"num_heads": 2, "input_layout": "BSH", **paged}
    name = "npu_fused_infer_attention_score_v2"
    yield name, (few,) * 3, {"num_query_heads": 2, "input_layout": "BSH"}
    yield name, (square,) * 3, {"num_query_heads": 2, "input_layout": "BNSD", "return_softmax_lse": True}


def _experts(x: T) -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    experts = T((4, 2), "int64", (1, 0, 0, 2, 2, 1, 0, 1))
    yield "npu_moe_token_permute", (x, experts), {}
    yield "npu_moe_token_permute", (x, ints(2, 0, 1, 1)), {}
    yield "npu_moe_token_permute", (x, experts), {"num_out_tokens": 6}
    places, rows, probs = ints(3, 0, 1, 6, 7, 4, 2, 5, dtype="int32"), T((8, 32)), T((4, 2))
    yield "npu_moe_token_unpermute", (rows, places, probs), {}
    yield "npu_moe_token_unpermute", (rows, places), {}
    routing = T((4, 3), "bool", (1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0))
    options: dict[str, object] = {"probs": T((4, 3)), "num_out_tokens": 8}
    yield "npu_moe_token_permute_with_routing_map", (x, routing), {"num_out_tokens": 8}
    yield "npu_moe_token_permute_with_routing_map", (x, routing), options
    yield (
        "npu_moe_token_permute_with_routing_map",
        (x, routing),
        {**options, "num_out_tokens": 6, "drop_and_pad": True},
    )
    yield "npu_moe_token_unpermute_with_routing_map", (rows, places, [4, 32]), {}
    back: dict[str, object] = {"probs": T((4, 3)), "routing_map": routing}
    yield "npu_moe_token_unpermute_with_routing_map", (rows, places, [4, 32]), back
    scores = T((4, 16))
    yield "npu_moe_gating_top_k_softmax", (scores, None, 2), {}
    yield "npu_moe_gating_top_k_softmax", (scores, T((4,), "bool"), 2), {}
    yield "npu_moe_gating_top_k", (scores, 2), {}
    grouped = {"k_group": 2, "group_count": 4, "group_select_mode": 1, "norm_type": 1, "out_flag": True}
    yield "npu_moe_gating_top_k", (scores, 2), {**grouped, "bias": T((16,))}
    few = replace(experts, dtype="int32")
    routed: dict[str, object] = {"expert_num": 3, "active_expert_range": [0, 3], "expert_tokens_num_flag": True}
    for kind in (0, 1):
        yield "npu_moe_init_routing_v2", (x, few), {**routed, "active_num": 8, "expert_tokens_num_type": kind}
    yield "npu_moe_init_routing_v2", (x, few), {**routed, "row_idx_type": 1, "scale": T((4,), "float32")}
    yield "npu_moe_finalize_routing", (rows, x, None, None, probs, places, None), {}
    yield "npu_moe_finalize_routing", (rows, x, x, T((3, 32)), probs, places, few), {}
    yield "npu_moe_compute_expert_tokens", (ints(0, 0, 2, 2, dtype="int32"), 3), {}


def _grouped() -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    x, weight, ends = T((6, 16)), T((2, 16, 8)), ints(2, 6)
    name = "npu_grouped_matmul"
    yield name, ([x], [weight]), {"group_list": ends, "split_item": 2, "group_type": 0}
    yield name, ([x], [weight]), {"group_list": ends, "split_item": 3, "group_type": 0}
    yield name, ([x], [weight]), {"group_list": ints(2, 4), "split_item": 3, "group_type": 0, "group_list_type": 1}
    yield name, ([x], [weight]), {"group_list": [2, 6], "split_item": 3, "group_type": 0}
    yield name, ([x], [weight]), {"group_list": ends, "split_item": 0, "group_type": 0}
    yield name, ([x], [weight]), {"group_list": ends, "split_item": 3, "group_type": 0, "bias": [T((2, 8))]}
    yield name, ([T((16, 6))], [T((6, 8))]), {"group_list": ends, "split_item": 3, "group_type": 2}
    yield name, ([T((16, 6))], [T((6, 8))]), {"group_list": [2, 6], "split_item": 3, "group_type": 2}
    each = ([x, T((3, 16))], [T((16, 8)), T((16, 4))])
    yield name, each, {"group_type": -1}
    yield name, each, {"group_type": -1, "split_item": 0}
    yield name, each, {}
    parts = ([T((2, 16)), T((4, 16))], [T((16, 8)), T((16, 8))])
    yield name, parts, {"split_item": 2, "group_type": 0, "group_list": ends}
    yield name, parts, {"split_item": 0, "group_type": -1}
    total = T((2, 16, 8), "float32")
    yield "npu_grouped_matmul_add_", (total, x, T((6, 8)), ends), {}
    yield "npu_grouped_matmul_add_", (total, x, T((6, 8)), ints(2, 4)), {"group_list_type": 1}


def _inference() -> Iterator[tuple[str, tuple[object, ...], dict[str, object]]]:
    logits, few = T((2, 16)), ints(3, 5, dtype="int32")
    yield "npu_top_k_top_p", (logits, T((2,), FLOAT, (0.5, 0.9)), few), {}
    yield "npu_top_k_top_p", (logits,), {"k": few}
    rows = T((2, 16), "float16")
    yield "npu_dynamic_quant", (rows,), {}
    yield "npu_dynamic_quant", (rows,), {"smooth_scales": T((16,), "float16")}
    by, zero = T((16,), "bfloat16"), T((16,), "bfloat16")
    yield "npu_quantize", (T((2, 16), "bfloat16"), by, zero, 12, -1, False), {}
    yield "npu_quantize", (T((2, 16), "bfloat16"), by, None, 12), {}
    token, cache = T((3, 2, 8)), T((2, 4, 2, 8))
    yield (
        "npu_scatter_pa_kv_cache",
        (token, token, cache, cache, ints(0, 5, -1, dtype="int32")),
        {"cache_mode": "Norm"},
    )
    yield "npu_transpose_batchmatmul", (T((2, 3, 16)), T((2, 16, 32))), {}
    yield "npu_transpose_batchmatmul", (T((3, 2, 16)), T((2, 16, 32))), {"perm_x1": [1, 0, 2], "perm_y": [1, 0, 2]}
    angle = T((2, 1, 3, 64))
    yield "npu_interleave_rope", (T((2, 2, 3, 64)), angle, angle), {}
    caches = (T((2, 16, 1, 64)), T((2, 16, 1, 512)))
    given = (T((2, 1, 3, 576)), T((512,)), angle, angle, ints(0, 1, 2, 17, 18, 19), *caches)
    yield "npu_kv_rmsnorm_rope_cache", given, {"cache_mode": "PA"}
    yield "npu_kv_rmsnorm_rope_cache", given, {"cache_mode": "PA", "is_output_kv": True}
    turned = (T((3, 64)), T((3, 32)), T((8, 32)), 32)
    yield "npu_mrope", (ints(0, 1, 2), *turned), {"mrope_section": [0, 0, 0]}
    images = T((3, 3), "int64", (0, 1, 2, 0, 0, 1, 0, 1, 1))
    yield "npu_mrope", (images, *turned), {"mrope_section": [8, 4, 4]}


def calls() -> Iterator[Call]:
    """Yield valid calls in each floating-point type, and bad ones from the first of each operator and arguments."""
    for number, (operator, args, options) in enumerate(_valid()):
        for dtype in FLOATS:
            made = tuple(_typed(arg, dtype) for arg in args)
            named = {key: _typed(value, dtype) for key, value in options.items()}
            text = ", ".join([*map(show, made), *(f"{key}={show(value)}" for key, value in named.items())])
            call = Call(operator, f"{number} {operator}({text})", True, made, named)
            yield call
            if dtype == "bfloat16":
                yield from _bad(call)


def _typed(value: object, dtype: str) -> object:
    if isinstance(value, T):
        return replace(value, dtype=dtype) if value.dtype == FLOAT else value
    return [_typed(each, dtype) for each in value] if isinstance(value, list) else value


def show(value: object) -> str:
    """Return a short text of an argument."""
    if isinstance(value, T):
        return f"{value.dtype}{list(value.shape)}"
    return f"[{', '.join(map(show, value))}]" if isinstance(value, list) else repr(value)


def _bad(call: Call) -> Iterator[Call]:
    def changed(what: str, args: Sequence[object], options: Mapping[str, object]) -> Call:
        return Call(call.operator, f"{call.label}: {what}", False, tuple(args), options)

    for place, value in enumerate(call.args):
        for what, other in _changes(value):
            yield changed(
                f"argument {place} {what}", (*call.args[:place], other, *call.args[place + 1 :]), call.options
            )
    for key, value in call.options.items():
        for what, other in _changes(value):
            yield changed(f"{key} {what}", call.args, {**call.options, key: other})
        yield changed(f"without {key}", call.args, {k: v for k, v in call.options.items() if k != key})
    yield changed("without the last argument", call.args[:-1], call.options)
    yield changed("with an unknown keyword", call.args, {**call.options, "no_such_keyword": 1})


def _changes(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, T):
        yield from _tensors(value)
        yield "is None", None
    elif isinstance(value, list) and value and isinstance(value[0], T):
        yield from ((f"[0] {what}", [other, *value[1:]]) for what, other in _tensors(value[0]))
        yield "is empty", []
        yield "has its first tensor twice", [value[0], *value]
    elif isinstance(value, list):
        yield "is empty", []
        yield "is one longer", [*value, 99]
        yield "is negative", [-number for number in value]
    elif isinstance(value, str):
        yield "is no such mode", "NO_SUCH"
    elif isinstance(value, int) and not isinstance(value, bool):
        yield "is -9", -9
        yield "is 99", 99
        yield "is a text", "1"
    elif value is None:
        yield "is a text", "1"


def _tensors(tensor: T) -> Iterator[tuple[str, T]]:
    yield "is on the host", replace(tensor, device="cpu")
    yield "is on another NPU", replace(tensor, device="npu:1")
    for dtype in ("float64", "float32", "float16", "int32", "int64", "bool"):
        if dtype != tensor.dtype:
            yield f"is of {dtype}", replace(tensor, dtype=dtype)
    yield "has a dimension more", replace(tensor, shape=(1, *tensor.shape))
    if tensor.shape:
        fewer = (tensor.shape[0] * tensor.shape[1], *tensor.shape[2:]) if len(tensor.shape) > 1 else ()
        values = tensor.values if len(tensor.shape) > 1 or not tensor.values else tensor.values[:1]
        yield "has a dimension less", replace(tensor, shape=fewer, values=values)
        yield "is wider by one", replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + 1), values=None)
