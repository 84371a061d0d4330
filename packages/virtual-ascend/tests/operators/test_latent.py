"""The operators of multi-head latent attention against their formulas in plain torch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from virtual_ascend import operators as ops  # noqa: E402
from virtual_ascend.operators import inference  # noqa: E402

from .drawing import draw, ints  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:.*computes float32 on virtual NPUs only")]

HEADS, NOPE, ROPE, LATENT, VALUE = 3, 128, 64, 512, 16


def angles(count: int) -> tuple[Any, Any, Any]:
    """Return cos and sin [count,1,1,64], with equal halves, and the rotations as complex numbers [count,1,1,32]."""
    turns = draw(count, 1, 1, ROPE // 2, seed=7)
    cos, sin = (torch.cat([part, part], -1) for part in (turns.cos(), turns.sin()))
    return cos, sin, torch.polar(torch.ones_like(turns), turns)


def test_pairs_are_put_apart_and_rotated() -> None:
    x = draw(4, HEADS, 1, ROPE)
    cos, sin, turns = angles(4)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns
    torch.testing.assert_close(ops.npu_interleave_rope(x, cos, sin), torch.cat([turned.real, turned.imag], -1))


@pytest.mark.parametrize("kv", [True, False])
def test_latent_and_rotated_parts_go_into_their_slots(kv: bool) -> None:
    tokens, gamma = draw(3, 1, 1, LATENT + ROPE), draw(LATENT, seed=1)
    cos, sin, _ = angles(3)
    rope_cache, latent_cache = torch.zeros(2, 2, 1, ROPE), torch.zeros(2, 2, 1, LATENT)
    results = ops.npu_kv_rmsnorm_rope_cache(
        tokens, gamma, cos, sin, torch.tensor([3, -1, 0]), rope_cache, latent_cache, cache_mode="PA", is_output_kv=kv
    )
    rotated = ops.npu_interleave_rope(tokens[..., LATENT:], cos, sin)
    normed = torch.nn.functional.rms_norm(tokens[..., :LATENT], (LATENT,), gamma, eps=1e-5)
    assert results[0] is rope_cache
    for cache, part in ((rope_cache, rotated), (latent_cache, normed)):
        rows = cache.flatten(0, 2)
        torch.testing.assert_close(rows[[3, 0]], part[[0, 2], 0, 0])
        assert rows[1:3].abs().sum() == 0
    if kv:
        torch.testing.assert_close(results[2:], (rotated, normed))
    else:
        assert [each.numel() for each in results[2:]] == [0, 0]


def parts(count: int, keys: int, seed: int = 0) -> dict[str, Any]:
    return {
        "q_nope": draw(count, HEADS, NOPE, seed=seed),
        "q_rope": draw(count, HEADS, ROPE, seed=seed + 1),
        "k_nope": draw(keys, HEADS, NOPE, seed=seed + 2),
        "k_rope": draw(keys, HEADS, ROPE, seed=seed + 3),
        "value": draw(keys, HEADS, VALUE, seed=seed + 4),
        "mask": torch.zeros(1),
        "head_num": HEADS,
        "kv_head_num": HEADS,
        "qk_scale": 0.1,
    }


def attention(given: dict[str, Any], rows: slice, columns: slice, causal: bool) -> Any:
    query, key = (torch.cat([given[f"{x}_nope"], given[f"{x}_rope"]], -1) for x in "qk")
    q, k, v = (t.transpose(0, 1) for t in (query[rows], key[columns], given["value"][columns]))
    count, keys = q.shape[1], k.shape[1]
    keep = torch.ones(count, keys, dtype=torch.bool).tril(keys - count) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.1).transpose(0, 1)


def test_packed_sequences_attend_causally_in_the_first_ring() -> None:
    given = parts(7, 7)
    out, lse = inference.npu_ring_mla(
        **given, seqlen=ints(5, 2), mask_type="mask_type_triu", calc_type="calc_type_first_ring"
    )
    torch.testing.assert_close(out[:5], attention(given, slice(5), slice(5), causal=True))
    torch.testing.assert_close(out[5:], attention(given, slice(5, 7), slice(5, 7), causal=True))
    assert lse.shape == (HEADS, 7)


def test_two_rings_are_one_attention_to_all_keys() -> None:
    given = parts(4, 9)
    whole = attention(given, slice(4), slice(9), causal=False)
    first = given | {name: given[name][:6] for name in ("k_nope", "k_rope", "value")}
    second = given | {name: given[name][6:] for name in ("k_nope", "k_rope", "value")}
    out, lse = inference.npu_ring_mla(**first, seqlen=ints([4], [6]))
    inference.npu_ring_mla(
        **second,
        seqlen=ints([4], [3]),
        calc_type="calc_type_default",
        pre_out=out,
        prev_lse=lse,
        output=out,
        softmax_lse=lse,
    )
    torch.testing.assert_close(out, whole)
    before = out.clone()
    inference.npu_ring_mla(
        **given,
        seqlen=ints([4], [0]),
        calc_type="calc_type_default",
        pre_out=out,
        prev_lse=lse,
        output=out,
        softmax_lse=lse,
    )
    assert torch.equal(out, before)


def test_a_part_of_each_sequence_is_packed_from_its_blocks() -> None:
    key_cache, value_cache = draw(3, 2, 1, 4), draw(3, 2, 1, 5, seed=1)
    table = ints([2, 0], [1, 1])
    key, value = inference.npu_paged_cache_load(key_cache, value_cache, table, ints(3, 1), seq_starts=ints(1, 0))
    for packed, cache in ((key, key_cache), (value, value_cache)):
        assert torch.equal(packed, torch.stack([cache[2, 1], cache[0, 0], cache[0, 1], cache[1, 0]]))
    ends = inference.npu_paged_cache_load(key_cache, value_cache, table, ints(0, 3, 4), cumsum=True)
    assert torch.equal(ends[0], torch.stack([key_cache[2, 0], key_cache[2, 1], key_cache[0, 0], key_cache[1, 0]]))


def test_the_rotated_parts_are_further_columns_of_query_and_key() -> None:
    query, key = draw(2, HEADS, 1, 8), draw(2, HEADS, 5, 8, seed=1)
    query_rope, key_rope = draw(2, HEADS, 1, 4, seed=2), draw(2, HEADS, 5, 4, seed=3)
    options: dict[str, Any] = {"num_heads": HEADS, "input_layout": "BNSD", "scale": 0.2}
    found, _ = ops.npu_fused_infer_attention_score(
        query, key, key, query_rope=query_rope, key_rope=key_rope, **options
    )
    wide = torch.cat([query, query_rope], -1), torch.cat([key, key_rope], -1)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(*wide, key, scale=0.2))
    with pytest.raises(RuntimeError, match="query_rope and key_rope must be passed together"):
        ops.npu_fused_infer_attention_score(query, key, key, query_rope=query_rope, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_sets_of_keys_are_one_attention_to_all_keys(dtype: Any) -> None:
    weights, values = draw(6, 12, dtype=torch.float64), draw(12, 16, seed=1).to(dtype)
    sets = slice(5), slice(5, 6), slice(6, 12)
    lse = [weights[:, keys].logsumexp(1).float() for keys in sets]
    parts = [(weights[:, keys].softmax(1) @ values[keys].double()).to(dtype) for keys in sets]
    merged, total = ops.npu_attention_update(lse, parts, 1)
    assert (merged.dtype, total.dtype) == (dtype, torch.float32)
    right = weights.softmax(1) @ values.double()
    torch.testing.assert_close(merged.double(), right, atol=4 * torch.finfo(dtype).eps, rtol=0)
    torch.testing.assert_close(total.double(), weights.logsumexp(1), atol=1e-6, rtol=1e-6)
    assert ops.npu_attention_update(lse, parts, 0)[1].numel() == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"update_type": 2}, "update_type must be 0 or 1"),
        ({"lse": [torch.zeros(3)]}, "must have the same number of tensors"),
        ({"lse": [torch.zeros(3).half()] * 2}, "each lse must be float32"),
        ({"local_out": [torch.zeros(3, 12)] * 2}, "D is a multiple of 8"),
        ({"local_out": [torch.zeros(3, 16), torch.zeros(3, 16).half()]}, "each local_out must have the same shape"),
        ({"local_out": [torch.zeros(3, 16).double()] * 2}, "must be float32, float16, or bfloat16"),
    ],
)
def test_sets_of_keys_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    given = {"lse": [torch.zeros(3)] * 2, "local_out": [torch.zeros(3, 16)] * 2, "update_type": 0}
    with pytest.raises(RuntimeError, match=message):
        ops.npu_attention_update(**{**given, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seqlen": torch.tensor([7])}, "seqlen must be int32 on the host"),
        ({"mask_type": "triu"}, "mask_type must be one of no_mask, mask_type_triu"),
        ({"calc_type": "calc_type_default"}, "calc_type_default requires pre_out and prev_lse"),
        ({"head_num": 2}, "expected queries with 2 heads"),
    ],
)
def test_what_a_ring_does_not_take_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        inference.npu_ring_mla(**{**parts(7, 7), "seqlen": ints(7), **changed})


@pytest.mark.parametrize(
    ("error", "changed", "message"),
    [
        (NotImplementedError, {"cache_mode": "PA_NZ"}, "cache_mode PA_NZ"),
        (RuntimeError, {"index": ints(0)}, "index must have dtype int64"),
        (RuntimeError, {"kv": torch.ones(1, 1, 1, 64)}, "kv must have shape"),
        (RuntimeError, {"k_cache": torch.zeros(1, 2, 1, ROPE).half()}, "k_cache must have"),
    ],
)
def test_what_the_caches_do_not_take_is_refused(error: type[Exception], changed: dict[str, Any], message: str) -> None:
    cos, sin, _ = angles(1)
    given = {
        "kv": draw(1, 1, 1, LATENT + ROPE),
        "gamma": torch.ones(LATENT),
        "cos": cos,
        "sin": sin,
        "index": torch.tensor([0]),
        "k_cache": torch.zeros(1, 2, 1, ROPE),
        "ckv_cache": torch.zeros(1, 2, 1, LATENT),
        "cache_mode": "PA",
    }
    with pytest.raises(error, match=message):
        ops.npu_kv_rmsnorm_rope_cache(**{**given, **changed})


def test_only_rotations_of_64_columns_are_taken() -> None:
    cos, sin, _ = angles(1)
    with pytest.raises(RuntimeError, match=r"x must have shape \[B,N,S,64\]"):
        ops.npu_interleave_rope(draw(1, 1, 1, 32), cos, sin)
