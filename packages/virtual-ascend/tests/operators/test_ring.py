"""Attention a block of keys at a time, as a ring of devices computes it; in plain torch, on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from virtual_ascend import operators as ops  # noqa: E402
from virtual_ascend.testing.fixtures import Run  # noqa: E402

from .drawing import draw  # noqa: E402

TEMPLATE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
HEADS, WIDTH, ROWS, BATCH = 4, 8, 6, 2


def tensors(layout: str, key_heads: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    shape: dict[str, Any] = {
        "BSH": lambda n: (BATCH, ROWS, n * WIDTH),
        "SBH": lambda n: (ROWS, BATCH, n * WIDTH),
        "BSND": lambda n: (BATCH, ROWS, n, WIDTH),
        "BNSD": lambda n: (BATCH, n, ROWS, WIDTH),
        "TND": lambda n: (BATCH * ROWS, n, WIDTH),
    }
    of = shape[layout]
    q, k, v = (draw(*of(n), seed=seed) for seed, n in enumerate((HEADS, key_heads, key_heads)))
    lengths = {"actual_seq_qlen": [5, 10], "actual_seq_kvlen": [4, 12]} if layout == "TND" else {}
    return q, k, v, lengths


@pytest.mark.parametrize(("layout", "key_heads"), [("BSH", 2), ("SBH", 1), ("BSND", 4), ("BNSD", 2), ("TND", 2)])
def test_the_gradient_of_attention_is_what_autograd_finds(layout: str, key_heads: int) -> None:
    q, k, v, lengths = tensors(layout, key_heads)
    sink = draw(HEADS, seed=7)
    pse = None if layout == "TND" else draw(1, HEADS, 1, ROWS, seed=8)
    leaves = [t.requires_grad_() for t in (q, k, v, sink, *([] if pse is None else [pse]))]
    how = {"atten_mask": TEMPLATE, "sparse_mode": 3, "sink": sink, "pse": pse, **lengths}
    out, top, total, *_ = ops.npu_fusion_attention(q, k, v, HEADS, layout, scale=0.3, **how)
    dy = draw(*out.shape, seed=9)
    dq, dk, dv, dsink, *dpse = torch.autograd.grad(out, leaves, dy)
    found = ops.npu_fusion_attention_grad(
        q, k, v, dy, HEADS, layout, softmax_max=top, softmax_sum=total, attention_in=out, scale_value=0.3, **how
    )
    for theirs, ours in zip((dq, dk, dv, *(dpse or [torch.empty(0)]), dsink), found, strict=True):
        torch.testing.assert_close(ours.detach(), theirs)


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_blocks_of_keys_join_to_the_whole_attention_and_its_gradient(layout: str) -> None:
    q, k, v, _ = tensors(layout, HEADS)
    dy, tokens = draw(*q.shape, seed=9), q.shape[0]

    def of(keys: slice) -> dict[str, Any]:
        columns = len(range(*keys.indices(tokens)))
        return {"actual_seq_qlen": [tokens], "actual_seq_kvlen": [columns]} if layout == "TND" else {}

    def forward(keys: slice) -> tuple[Any, ...]:
        return tuple(ops.npu_fusion_attention(q, k[keys], v[keys], HEADS, layout, scale=0.3, **of(keys))[:3])

    def backward(keys: slice, out: Any, top: Any, total: Any) -> tuple[Any, ...]:
        known = {"softmax_max": top, "softmax_sum": total, "attention_in": out}
        grads = ops.npu_fusion_attention_grad(
            q, k[keys], v[keys], dy, HEADS, layout, scale_value=0.3, **known, **of(keys)
        )
        return tuple(grads[:3])

    blocks = slice(0, 2), slice(2, None)
    lengths = torch.tensor([tokens]) if layout == "TND" else None
    first, second = map(forward, blocks)
    joined = ops.npu_ring_attention_update(*first, *second, input_layout=layout, actual_seq_qlen=lengths)
    whole = forward(slice(None))
    for ours, theirs in zip(joined, whole, strict=True):
        torch.testing.assert_close(ours, theirs)
    (dq1, dk1, dv1), (dq2, dk2, dv2) = (backward(keys, *joined) for keys in blocks)
    expected = backward(slice(None), *whole)
    for ours, theirs in zip((dq1 + dq2, torch.cat([dk1, dk2]), torch.cat([dv1, dv2])), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"attention_in": None}, RuntimeError, "attention_in are required"),
        ({"keep_prob": 0.9}, NotImplementedError, "keep_prob"),
        ({"sparse_mode": 7}, RuntimeError, "sparse_mode"),
        ({"attention_in": torch.zeros(1, 2, 3, 4)}, RuntimeError, "attention_in"),
    ],
)
def test_a_gradient_that_cannot_be_had_is_refused(changes: dict[str, Any], error: type, words: str) -> None:
    q, k, v, _ = tensors("BNSD", HEADS)
    out, top, total, *_ = ops.npu_fusion_attention(q, k, v, HEADS, "BNSD")
    known = {"softmax_max": top, "softmax_sum": total, "attention_in": out} | changes
    with pytest.raises(error, match=words):
        ops.npu_fusion_attention_grad(q, k, v, out, HEADS, "BNSD", **known)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"input_layout": "BSH"}, RuntimeError, "'SBH' or 'TND'"),
        ({"input_layout": "TND"}, RuntimeError, "dimensions"),
        ({"input_softmax_layout": "TND"}, NotImplementedError, "input_softmax_layout"),
        ({"actual_seq_qlen": torch.zeros(1, dtype=torch.int32)}, RuntimeError, "int64"),
        ({"cur_attn_out": torch.zeros(1, 1, 8)}, RuntimeError, "the same shape"),
        ({"prev_softmax_sum": torch.zeros(1, 1, 1, 8, dtype=torch.float16)}, RuntimeError, "float32"),
    ],
)
def test_an_update_of_what_does_not_fit_is_refused(changes: dict[str, Any], error: type, words: str) -> None:
    out, statistics = torch.zeros(ROWS, 1, 8), torch.ones(1, 1, ROWS, 8)
    names = ("prev_attn_out", "prev_softmax_max", "prev_softmax_sum", "cur_attn_out", "cur_softmax_max")
    given = dict(zip((*names, "cur_softmax_sum"), (out, statistics, statistics) * 2, strict=True))
    with pytest.raises(error, match=words):
        ops.npu_ring_attention_update(**(given | changes))


def test_the_second_version_of_inference_attention_is_the_first_by_other_names() -> None:
    q, k, v, _ = tensors("BSH", 2)
    first = ops.npu_fused_infer_attention_score(
        q, k, v, num_heads=HEADS, num_key_value_heads=2, scale=0.3, actual_seq_lengths_kv=[3, 5], softmax_lse_flag=True
    )
    second = ops.npu_fused_infer_attention_score_v2(
        q,
        k,
        v,
        num_query_heads=HEADS,
        num_key_value_heads=2,
        softmax_scale=0.3,
        actual_seq_kvlen=[3, 5],
        return_softmax_lse=True,
    )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(second, first, strict=True))


PROGRAM = """
import json, torch, torch_npu
q = torch.randn(4, 1, 8, device="npu")
out, top, total, *_ = torch_npu.npu_fusion_attention(q, q, q, 1, "SBH")
grads = torch_npu.npu_fusion_attention_grad(q, q, q, q, 1, "SBH", softmax_max=top, softmax_sum=total, attention_in=out)
try: joined = len(torch_npu.npu_ring_attention_update(out, top, total, out, top, total))
except AttributeError: joined = None
print(json.dumps({"grads": len(grads), "device": str(grads[0].device), "joined": joined}))
"""


@pytest.mark.parametrize(("version", "grads", "joined"), [("2.7.1", 4, None), ("2.13.0", 5, 3)])
def test_each_version_has_its_results(python: Run, version: str, grads: int, joined: int | None) -> None:
    done = python(PROGRAM, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"grads": grads, "device": "npu:0", "joined": joined}
