"""ATB's operators agree with torch's own attention, and refuse bad arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

torch = pytest.importorskip("torch")

from virtual_ascend import operators  # noqa: E402
from virtual_ascend.operators import atb, inference, schemas  # noqa: E402
from virtual_ascend.operators import attention as attention_operators  # noqa: E402
from virtual_ascend.operators.sampling import npu_top_k_top_p  # noqa: E402

from .drawing import draw, ints  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:.*computes float32 on virtual NPUs only")]

HEADS, KEY_HEADS, SIZE, BLOCK = 4, 2, 8, 16
LENGTHS = (5, 1, 20)
SCALE = 0.3


def expected(query: Any, key: Any, value: Any, keep: Any = None) -> Any:
    """Return torch's attention of one sequence: [S,N,D] to [L,Nkv,D]."""
    shared = HEADS // KEY_HEADS
    q, k, v = query.transpose(0, 1), *(t.repeat_interleave(shared, 1).transpose(0, 1) for t in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=SCALE).transpose(0, 1)


def causal(rows: int, columns: int) -> Any:
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


def caches() -> tuple[Any, Any, Any, list[Any], list[Any]]:
    """Return two caches of sequences of LENGTHS, their block table, and their keys and values."""
    keys = [draw(length, KEY_HEADS, SIZE, seed=1 + n) for n, length in enumerate(LENGTHS)]
    values = [draw(length, KEY_HEADS, SIZE, seed=9 + n) for n, length in enumerate(LENGTHS)]
    table = torch.tensor([[3, 0], [1, 0], [4, 2]], dtype=torch.int32)
    key_cache, value_cache = torch.zeros(2, 5, BLOCK, KEY_HEADS, SIZE)
    slots = [
        int(table[n, at // BLOCK]) * BLOCK + at % BLOCK for n, length in enumerate(LENGTHS) for at in range(length)
    ]
    inference._npu_reshape_and_cache(torch.cat(keys), torch.cat(values), key_cache, value_cache, ints(*slots))
    return key_cache, value_cache, table, keys, values


def test_a_token_of_each_sequence_attends_to_its_cache() -> None:
    key_cache, value_cache, table, keys, values = caches()
    query = draw(3, HEADS, SIZE, seed=5)
    out = torch.empty_like(query)
    atb._npu_paged_attention(query, key_cache, value_cache, KEY_HEADS, HEADS, SCALE, table, ints(*LENGTHS), out)
    for n in range(3):
        torch.testing.assert_close(out[n : n + 1], expected(query[n : n + 1], keys[n], values[n]))


def test_latents_are_keys_and_their_front_is_the_values() -> None:
    key_cache, _, table, keys, _ = caches()
    query, out = draw(3, HEADS, SIZE, seed=5), torch.empty(3, HEADS, 6)
    arguments = (KEY_HEADS, HEADS, SCALE, table, ints(*LENGTHS))
    atb._npu_paged_attention_mla(query, key_cache, *arguments, 6, out)
    for n in range(3):
        torch.testing.assert_close(out[n : n + 1], expected(query[n : n + 1], keys[n], keys[n][..., :6]))
    with pytest.raises(RuntimeError, match="mla_vheadsize=9 is out of range for keys of the size 8"):
        atb._npu_paged_attention_mla(query, key_cache, *arguments, 9, out)


def test_the_last_tokens_of_sequences_attend_to_their_caches_causally() -> None:
    key_cache, value_cache, table, keys, values = caches()
    asked = (3, 1, 7)
    query = draw(sum(asked), HEADS, SIZE, seed=5)
    out = torch.empty_like(query)
    mask = torch.ones(128, 128).triu(1)
    lengths = (ints(*asked), ints(*LENGTHS))
    atb._npu_flash_attention_qlens(query, key_cache, value_cache, table, mask, *lengths, KEY_HEADS, HEADS, SCALE, out)
    for n, (mine, rows) in enumerate(zip(out.split(asked), query.split(asked), strict=True)):
        torch.testing.assert_close(mine, expected(rows, keys[n], values[n], causal(asked[n], LENGTHS[n])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_parts_of_prompts_attend_to_their_caches_as_the_mask_that_is_added_says(dtype: Any) -> None:
    key_cache, value_cache, table, keys, values = caches()
    asked = (3, 1, 7)
    query = draw(sum(asked), HEADS, SIZE, seed=5).to(dtype)
    out = torch.empty_like(query)
    keep = [
        causal(most, max(LENGTHS)).roll(length - max(LENGTHS), 1) for most, length in zip(asked, LENGTHS, strict=True)
    ]
    mask = torch.zeros(sum(asked), max(LENGTHS)).masked_fill(~torch.cat(keep), -10000).to(dtype)
    atb._npu_paged_attention_splitfuse(
        query,
        key_cache.to(dtype),
        value_cache.to(dtype),
        table,
        ints(*LENGTHS),
        mask,
        ints(*asked),
        KEY_HEADS,
        HEADS,
        SCALE,
        out,
    )
    for n, (mine, rows) in enumerate(zip(out.split(asked), query.split(asked), strict=True)):
        want = expected(rows.float(), keys[n], values[n], causal(asked[n], LENGTHS[n]))
        torch.testing.assert_close(mine.float(), want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_packed_sequences_attend_as_the_mask_says(dtype: Any) -> None:
    total = sum(LENGTHS)
    query, key, value = (draw(total, n, SIZE, seed=n).to(dtype) for n in (HEADS, KEY_HEADS, KEY_HEADS))
    keep = causal(32, 32)
    keep[:, 1] = True  # and the first token sees the second
    mask = torch.zeros(32, 32, dtype=dtype).masked_fill(~keep, float("-inf") if dtype == torch.float16 else 1)
    out = torch.empty_like(query)
    atb._npu_flash_attention(query, key, value, mask, ints(*LENGTHS), SCALE, HEADS, KEY_HEADS, out)
    for mine, q, k, v in zip(*(t.split(LENGTHS) for t in (out, query, key, value)), strict=True):
        want = expected(q.float(), k.float(), v.float(), keep[: len(q), : len(q)])
        torch.testing.assert_close(mine.float(), want, rtol=2e-2, atol=2e-2)


def test_values_may_be_narrower_than_keys_and_so_is_what_comes_out() -> None:
    total = sum(LENGTHS)
    query, key = (draw(total, n, SIZE, seed=n) for n in (HEADS, KEY_HEADS))
    value = draw(total, KEY_HEADS, SIZE // 2, seed=9)
    mask = torch.ones(32, 32).triu(1)
    out = torch.empty(total, HEADS, SIZE // 2)
    atb._npu_flash_attention(query, key, value, mask, ints(*LENGTHS), SCALE, HEADS, KEY_HEADS, out)
    for mine, q, k, v in zip(*(t.split(LENGTHS) for t in (out, query, key, value)), strict=True):
        torch.testing.assert_close(mine, expected(q, k, v, causal(len(q), len(q))))
    with pytest.raises(RuntimeError, match="expected query and out"):
        atb._npu_flash_attention(query, key, value, mask, ints(*LENGTHS), SCALE, HEADS, KEY_HEADS, query.clone())


def test_the_tokens_of_a_packed_sequence_attend_to_all_of_it() -> None:
    total = sum(LENGTHS)
    query, key, value = (draw(total, n, SIZE, seed=n) for n in (HEADS, KEY_HEADS, KEY_HEADS))
    out = torch.empty_like(query)
    atb._npu_flash_attention_unpad(query, key, value, ints(*LENGTHS), SCALE, HEADS, KEY_HEADS, out)
    for mine, q, k, v in zip(*(t.split(LENGTHS) for t in (out, query, key, value)), strict=True):
        torch.testing.assert_close(mine, expected(q, k, v))
    with pytest.raises(RuntimeError, match="the sequences have 27 tokens, but query has 26"):
        atb._npu_flash_attention_unpad(query, key, value, ints(*LENGTHS, 1), SCALE, HEADS, KEY_HEADS, out)


def test_a_negative_slot_is_left_out() -> None:
    cache = torch.zeros(1, 4, 1, 2)
    inference._npu_reshape_and_cache_siso(torch.ones(3, 1, 2), cache, ints(2, -1, 0))
    assert cache[0, :, 0, 0].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_token_is_scattered_to_its_slot_as_atb_writes_it(dtype: torch.dtype) -> None:
    key, value, slots = draw(3, KEY_HEADS, SIZE), draw(3, KEY_HEADS, 2), ints(20, -1, 0)
    mine, theirs = ([torch.zeros(2, BLOCK, KEY_HEADS, width) for width in (SIZE, 2)] for _ in range(2))
    operators.npu_scatter_pa_kv_cache(key, value, *mine, slots.to(dtype), cache_mode="Norm")
    inference._npu_reshape_and_cache(key, value, *theirs, slots)
    assert all(map(torch.equal, mine, theirs))
    assert torch.equal(mine[1][1, 4], value[0])


def test_a_cache_that_is_not_written_says_so() -> None:
    token, cache = draw(1, KEY_HEADS, SIZE), torch.zeros(1, BLOCK, KEY_HEADS, SIZE)
    with pytest.raises(
        NotImplementedError, match="npu_scatter_pa_kv_cache: virtual-ascend does not implement cache_mode PA_NZ"
    ):
        operators.npu_scatter_pa_kv_cache(token, token, cache, cache, ints(0))


def test_slots_to_scatter_to_are_whole_numbers() -> None:
    token, cache = draw(1, KEY_HEADS, SIZE), torch.zeros(1, BLOCK, KEY_HEADS, SIZE)
    with pytest.raises(RuntimeError, match="slot_mapping must be int32 or int64"):
        operators.npu_scatter_pa_kv_cache(token, token, cache, cache, torch.zeros(1), cache_mode="Norm")


@pytest.mark.parametrize("halves", [True, False])
def test_query_and_key_are_rotated_in_place_by_their_positions(halves: bool) -> None:
    angles = torch.outer(torch.arange(10.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    table, positions = torch.cat([angles.cos(), angles.sin()], -1), torch.tensor([7, 0, 3])
    query, key = draw(3, 2 * SIZE), draw(3, SIZE, seed=1)
    turned = torch.polar(torch.ones(3, 1, 4), angles[positions].unsqueeze(1))

    def rotated(x: Any) -> Any:
        heads = x.view(3, -1, SIZE)
        pairs = heads.unflatten(-1, (2, 4)).transpose(-1, -2) if halves else heads.unflatten(-1, (4, 2))
        out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turned)
        return (out.transpose(-1, -2) if halves else out).flatten(1)

    wanted = rotated(query), rotated(key)
    atb._npu_rotary_embedding(positions, query, key, SIZE, table, halves)
    torch.testing.assert_close((query, key), wanted)


def test_a_product_is_added_in_float32() -> None:
    x, weight, total = draw(5, 3).bfloat16(), draw(5, 2, seed=1).bfloat16(), draw(3, 2, seed=2)
    wanted = total + x.float().t() @ weight.float()
    atb._npu_matmul_add_fp32(x, weight, total)
    torch.testing.assert_close(total, wanted)
    with pytest.raises(RuntimeError, match=r"C must have dtype float32 and shape \[3,2\]"):
        atb._npu_matmul_add_fp32(x, weight, total.bfloat16())


def test_float32_is_computed_with_a_warning_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_operators, "_warned", set())
    arguments = (torch.zeros(1, dtype=torch.long), torch.ones(1, 2), torch.ones(1, 2), 2, torch.ones(1, 2), True)
    with pytest.warns(UserWarning, match="a real NPU takes float16 and bfloat16"):
        atb._npu_rotary_embedding(*arguments)
    atb._npu_rotary_embedding(*arguments)


def attention(**changed: Any) -> Callable[[], None]:
    key_cache, value_cache, table, _, _ = caches()
    query = draw(3, HEADS, SIZE)
    given = {
        "query": query,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "num_kv_heads": KEY_HEADS,
        "num_heads": HEADS,
        "scale_value": SCALE,
        "block_table": table,
        "context_lens": ints(*LENGTHS),
        "out": torch.empty_like(query),
    }
    return lambda: atb._npu_paged_attention(**{**given, **changed})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (attention(context_lens=torch.tensor(LENGTHS)), "context_lens must be int32, but is torch.int64"),
        (attention(block_table=torch.zeros(3, 2).long()), "block_table must be int32"),
        (attention(block_table=torch.zeros(3, 1).int()), r"sequence 2 has 20 tokens and needs 2 blocks of 16"),
        (attention(context_lens=ints(1, 1, 1, 1)), "4 lengths, but query has only 3 tokens"),
        (attention(out=torch.empty(3, HEADS, SIZE).half()), "query is torch.float32, and out is torch.float16"),
        (attention(query=torch.ones(3, HEADS, SIZE).double()), "query must be float16 or bfloat16"),
        (attention(num_heads=3), r"expected query and out \[tokens,3,size\]"),
        (attention(num_kv_heads=4), "keys with 4 heads"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], None], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize(
    ("key", "slots", "message"),
    [
        (torch.ones(2, 1, 2), torch.zeros(2).long(), "slot_indices must be int32"),
        (
            torch.ones(2, 1, 2).half(),
            ints(0, 1),
            "the cache is torch.float32, and the tensor is torch.float16",
        ),
        (torch.ones(2, 1, 2), ints(0, 4), "slot 4 is outside the cache, which has room for 4 tokens"),
        (torch.ones(2, 2, 2), ints(0, 1), "one slot for each token"),
    ],
)
def test_what_does_not_fit_into_a_cache_is_refused(key: Any, slots: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        inference._npu_reshape_and_cache_siso(key, torch.zeros(1, 4, 1, 2), slots)


def test_only_the_causal_template_is_taken_for_cached_sequences() -> None:
    key_cache, value_cache, table, _, _ = caches()
    query = draw(3, HEADS, SIZE)
    lengths = (ints(1, 1, 1), ints(*LENGTHS), KEY_HEADS, HEADS, SCALE, torch.empty_like(query))
    with pytest.raises(RuntimeError, match="mask must be a causal attention mask"):
        atb._npu_flash_attention_qlens(query, key_cache, value_cache, table, torch.zeros(128, 128), *lengths)
    with pytest.raises(RuntimeError, match="mask must be 128 x 128"):
        atb._npu_flash_attention_qlens(query, key_cache, value_cache, table, torch.zeros(64, 64), *lengths)


@pytest.mark.parametrize("name", atb.OPERATORS)
def test_an_operator_has_the_parameters_that_the_wheel_registers(name: str) -> None:
    offered = schemas.atb_of_version(schemas.versions()[-1])
    texts = {**offered["torch_npu"], **offered["torch_npu.atb"]}
    # One function serves both overloads, with and without the caller's tensors.
    schema = torch._C.parse_schema(f"atb::{texts.get(f'{name}.out', texts[name])}")
    recorded = [(argument.name, argument.kwarg_only) for argument in schema.arguments]
    ours = inspect.signature(atb.OPERATORS[name]).parameters.values()
    assert [(p.name, p.kind is inspect.Parameter.KEYWORD_ONLY) for p in ours] == recorded
    assert set(atb.HOST.get(name, ())) <= {argument for argument, _ in recorded}


def test_the_most_likely_logits_are_kept() -> None:
    logits = torch.tensor([[0.5, 3.0, 2.0, 1.0], [4.0, 4.0, 0.0, -1.0]])
    kept = npu_top_k_top_p(logits, None, ints(2, 1)).isfinite()
    assert kept.tolist() == [[False, True, True, False], [True, True, False, False]]
    probabilities = logits.softmax(-1)
    kept = npu_top_k_top_p(logits, torch.tensor([0.7, 0.99]), None).isfinite()
    assert probabilities[0, 1] < 0.7 < probabilities[0, 1:3].sum()
    assert kept.tolist() == [[False, True, True, False], [True, True, True, False]]
    assert npu_top_k_top_p(logits, torch.zeros(2), None).isfinite().sum(-1).tolist() == [1, 1]
    assert torch.equal(npu_top_k_top_p(logits), logits)


def test_what_a_sampler_gives_must_fit_the_logits() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"k must have shape \[1\] and dtype torch.int32, but has shape \(1,\) and dtype torch.int64",
    ):
        npu_top_k_top_p(torch.ones(1, 4), None, torch.tensor([1]))
    with pytest.raises(RuntimeError, match="logits must have"):
        npu_top_k_top_p(torch.ones(4))


PROGRAM = """
import json, torch, torch_npu
cache = torch.zeros(2, 16, 1, 8, device="npu", dtype=torch.bfloat16)
query = torch.ones(1, 2, 8, device="npu", dtype=torch.bfloat16)
table, out = torch.zeros(1, 1, device="npu", dtype=torch.int32), torch.ones_like(query)
lengths = torch.tensor([3], dtype=torch.int32)
torch_npu._npu_paged_attention(query, cache, cache, 1, 2, 1.0, table, lengths, out)
said = {"out": out.abs().sum().item(), "same": torch_npu._npu_paged_attention is torch.ops.atb._npu_paged_attention}
for name, call in {
    "mixed": lambda: torch_npu._npu_paged_attention(query, cache.cpu(), cache, 1, 2, 1.0, table, lengths, out),
    "not written": lambda: torch_npu.atb.npu_mla_preprocess(),
}.items():
    try:
        call()
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
from torch_npu.op_plugin.atb._atb_ops import _register_atb_extensions
_register_atb_extensions()
print(json.dumps(said))
"""


def test_lengths_lie_on_the_host_and_all_else_on_one_npu(python: Run) -> None:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["out"], said["same"]) == (0, True)
    assert "expected all tensors to be on the same device" in said["mixed"]
    assert said["not written"].startswith("NotImplementedError: torch_npu.atb.npu_mla_preprocess")
