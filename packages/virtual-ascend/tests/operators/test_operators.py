"""The reference operators against formulas written another way. They are plain torch, so the CPU is enough."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from virtual_ascend import operators as ops  # noqa: E402

from .drawing import draw  # noqa: E402

TEMPLATE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
functional = torch.nn.functional


def kept(mode: int, i: int, j: int, rows: int, columns: int, before: int, after: int) -> bool:
    """Apply the documented rule, score by score."""
    shift = columns - rows
    return {
        0: j - i <= after and i - j <= before,
        1: True,
        2: j <= i,
        3: j <= i + shift,
        4: j - i - shift <= after and i + shift - j <= before,
    }[mode]


def expected(q: Any, k: Any, v: Any, keep: Any, scale: float) -> Any:
    """Compute [B,N,S,D] with torch's own attention; rows that keep nothing are zero."""
    repeat = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=scale)
    return out.masked_fill(~keep.any(-1, keepdim=True), 0)


def to_layout(x: Any, layout: str) -> Any:
    return {
        "BNSD": lambda: x,
        "BSND": lambda: x.transpose(1, 2),
        "BSH": lambda: x.transpose(1, 2).flatten(2),
        "SBH": lambda: x.permute(2, 0, 1, 3).flatten(2),
        "TND": lambda: x.transpose(1, 2).flatten(0, 1),
    }[layout]()


@settings(max_examples=80, deadline=None)
@given(
    layout=st.sampled_from(["BSH", "SBH", "BSND", "BNSD", "TND"]),
    mode=st.integers(0, 4),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    groups=st.integers(1, 3),
    window=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    masked=st.booleans(),
)
def test_attention_follows_its_mode_in_every_layout(
    layout: str, mode: int, rows: int, columns: int, groups: int, window: tuple[int, int], masked: bool
) -> None:
    q, k, v = (
        draw(2, n, s, 4, seed=i, requires_grad=True)
        for i, (n, s) in enumerate([(2 * groups, rows), (2, columns), (2, columns)])
    )
    full = draw(rows, columns, seed=9) > 0.5
    mask = None if not masked else (full if mode < 2 else TEMPLATE)
    keep = torch.ones(rows, columns, dtype=torch.bool)
    if masked:
        rule = [[kept(mode, i, j, rows, columns, *window) for j in range(columns)] for i in range(rows)]
        keep = torch.tensor(rule) & (~full if mode < 2 else True)
    lengths: dict[str, Any] = {}
    if layout == "TND":
        lengths = {"actual_seq_qlen": [rows, 2 * rows], "actual_seq_kvlen": [columns, 2 * columns]}
    out, top, total, *_ = ops.npu_fusion_attention(
        *(to_layout(t, layout) for t in (q, k, v)),
        2 * groups,
        layout,
        atten_mask=mask,
        scale=0.5,
        sparse_mode=mode,
        pre_tockens=window[0],
        next_tockens=window[1],
        **lengths,
    )
    reference = expected(q, k, v, keep, 0.5)
    torch.testing.assert_close(out, to_layout(reference, layout))
    weights = draw(*out.shape, seed=5)
    ours = torch.autograd.grad((out * weights).sum(), (q, k, v))
    theirs = torch.autograd.grad((to_layout(reference, layout) * weights).sum(), (q, k, v))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.nan_to_num())
    scores = 0.5 * q @ k.repeat_interleave(groups, 1).transpose(-1, -2)
    lse = scores.masked_fill(~keep, -math.inf).logsumexp(-1)
    if keep.any(-1).all():
        found = (top + total.log())[..., 0]
        found = found.unflatten(0, (2, rows)).transpose(1, 2) if layout == "TND" else found
        torch.testing.assert_close(found, lse.detach())


def test_attention_returns_seven_things_of_the_documented_shapes() -> None:
    q = draw(2, 3, 8)
    out, top, total, empty, seed, offset, numels = ops.npu_fusion_attention(q, q, q, 2, "BSH")
    assert (out.shape, top.shape, total.shape, empty.numel()) == (q.shape, (2, 2, 3, 8), (2, 2, 3, 8), 0)
    assert (top.dtype, seed, offset, numels) == (torch.float32, 0, 0, 0)
    q = draw(5, 2, 4)
    _, top, *_ = ops.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=[2, 5], actual_seq_kvlen=[2, 5])
    assert top.shape == (5, 2, 8)


def test_a_causal_mode_without_a_mask_attends_to_the_future() -> None:
    q = draw(1, 2, 4, 8)
    full = ops.npu_fusion_attention(q, q, q, 2, "BNSD")[0]
    assert torch.equal(ops.npu_fusion_attention(q, q, q, 2, "BNSD", sparse_mode=3)[0], full)
    masked = ops.npu_fusion_attention(q, q, q, 2, "BNSD", sparse_mode=3, atten_mask=TEMPLATE)[0]
    assert not torch.allclose(masked, full)


@pytest.mark.parametrize("mode", [5, 6])
def test_a_prefix_is_seen_by_every_row_of_its_sequence(mode: int) -> None:
    q, k, v = (draw(2, 2, 4, 8, seed=seed, requires_grad=True) for seed in range(3))
    rule = [[[j <= i or j < prefix for j in range(4)] for i in range(4)] for prefix in (3, 0)]
    keep = torch.tensor(rule).unsqueeze(1)
    mask = ~keep if mode == 5 else torch.ones(3072, 2048, dtype=torch.bool)
    out = ops.npu_fusion_attention(q, k, v, 2, "BNSD", atten_mask=mask, sparse_mode=mode, prefix=[3, 0], scale=0.5)[0]
    reference = expected(q, k, v, keep, 0.5)
    torch.testing.assert_close(out, reference)
    for mine, other in zip(*(torch.autograd.grad(t.square().sum(), (q, k, v)) for t in (out, reference)), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(("mode", "rules"), [(7, (3, 3, 4)), (8, (4, 2, 2))])
def test_a_packed_batch_that_was_cut_has_a_band_at_the_cut(mode: int, rules: tuple[int, ...]) -> None:
    q, ends, window = draw(9, 2, 4), [2, 5, 9], {"pre_tockens": 1, "next_tockens": 0}
    lengths = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    whole = ops.npu_fusion_attention(q, q, q, 2, "TND", atten_mask=TEMPLATE, sparse_mode=mode, **lengths, **window)[0]
    for start, end, rule in zip([0, *ends], ends, rules, strict=False):
        part = q[start:end].transpose(0, 1)[None]
        alone = ops.npu_fusion_attention(part, part, part, 2, "BNSD", atten_mask=TEMPLATE, sparse_mode=rule, **window)[
            0
        ]
        torch.testing.assert_close(whole[start:end], alone[0].transpose(0, 1))


def test_pse_is_added_to_the_products_and_has_a_gradient() -> None:
    q, pse = draw(2, 2, 3, 4), draw(1, 2, 3, 3, seed=4, requires_grad=True)
    out = ops.npu_fusion_attention(q, q, q, 2, "BNSD", pse=pse, scale=0.5)[0]
    reference = functional.scaled_dot_product_attention(q, q, q, attn_mask=0.5 * pse, scale=0.5)
    torch.testing.assert_close(out, reference)
    mine, other = (torch.autograd.grad(t.square().sum(), pse)[0] for t in (out, reference))
    torch.testing.assert_close(mine, other)


def test_a_sink_is_a_score_without_a_value() -> None:
    q, sink = draw(1, 2, 3, 4), draw(2, seed=7, requires_grad=True)
    out, top, total, *_ = ops.npu_fusion_attention(q, q, q, 2, "BNSD", sink=sink)
    scores = torch.cat([q @ q.transpose(-1, -2), sink.view(1, 2, 1, 1).expand(1, 2, 3, 1)], -1)
    reference = scores.softmax(-1)[..., :3] @ q
    torch.testing.assert_close(out, reference)
    torch.testing.assert_close((top + total.log())[..., 0], scores.logsumexp(-1).detach())
    mine, other = (torch.autograd.grad(t.square().sum(), sink)[0] for t in (out, reference))
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "TND"])
def test_inference_attention_equals_the_training_one(layout: str) -> None:
    q, k = draw(2, 4, 3, 8), draw(2, 2, 3, 8, seed=1)
    lengths = {"actual_seq_qlen": [3, 6], "actual_seq_kvlen": [3, 6]} if layout == "TND" else {}
    same = {"actual_seq_lengths": [3, 6], "actual_seq_lengths_kv": [3, 6]} if layout == "TND" else {}
    call = [to_layout(t, layout) for t in (q, k, k)]
    masked: dict[str, Any] = {"atten_mask": TEMPLATE, "sparse_mode": 3, "scale": 0.3}
    trained, top, total, *_ = ops.npu_fusion_attention(*call, 4, layout, **masked, **lengths)
    heads: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout}
    out, lse = ops.npu_fused_infer_attention_score(*call, **heads, **masked, **same, softmax_lse_flag=True)
    torch.testing.assert_close(out, trained)
    torch.testing.assert_close(lse, (top + total.log())[..., :1])
    assert ops.npu_fused_infer_attention_score(*call, **heads, **same)[1].numel() == 0


@pytest.mark.parametrize(
    ("layout", "turn"),
    [
        ("BNSD_BSND", lambda out: out.transpose(1, 2)),
        ("BNSD_NBSD", lambda out: out.transpose(0, 1)),
        ("BSND_NBSD", lambda out: out.permute(2, 0, 1, 3)),
        ("TND_NTD", lambda out: out.transpose(0, 1)),
    ],
)
def test_the_result_of_inference_has_the_layout_behind_the_underscore(layout: str, turn: Any) -> None:
    own = layout.partition("_")[0]
    q = to_layout(draw(2, 4, 3, 8), own)
    same = {"actual_seq_lengths": [3, 6], "actual_seq_lengths_kv": [3, 6]} if own == "TND" else {}
    plain, its = ops.npu_fused_infer_attention_score(
        q, q, q, num_heads=4, input_layout=own, softmax_lse_flag=True, **same
    )
    out, lse = ops.npu_fused_infer_attention_score(
        q, q, q, num_heads=4, input_layout=layout, softmax_lse_flag=True, **same
    )
    torch.testing.assert_close(out, turn(plain))
    torch.testing.assert_close(lse, its)
    with pytest.raises(RuntimeError, match=r"input_layout should be .* but got 'BNSD_TND'"):
        ops.npu_fused_infer_attention_score(q, q, q, num_heads=4, input_layout="BNSD_TND")


@pytest.mark.parametrize("flat", [True, False])
def test_inference_reads_its_keys_from_a_cache_of_blocks(flat: bool) -> None:
    q, k = draw(2, 2, 1, 4), draw(2, 2, 5, 4, seed=1)
    table = torch.tensor([[3, 0, 1], [2, 5, 4]], dtype=torch.int32)
    blocks = torch.full((6, 2, 2, 4), math.nan)  # [blocks,N,size,D]
    for row, keys in zip(table, k, strict=True):
        for position in range(5):
            blocks[row[position // 2], :, position % 2] = keys[:, position]
    cache = blocks.transpose(1, 2).flatten(2) if flat else blocks
    out, _ = ops.npu_fused_infer_attention_score(
        q,
        cache,
        cache,
        num_heads=2,
        input_layout="BNSD",
        block_table=table,
        block_size=2,
        actual_seq_lengths_kv=[5, 3],
    )
    for number, length in enumerate([5, 3]):
        one, keys = q[number : number + 1], k[number : number + 1, :, :length]
        reference = functional.scaled_dot_product_attention(one, keys, keys, scale=1.0)
        torch.testing.assert_close(out[number : number + 1], reference)


def test_inference_has_no_gradient_and_names_what_is_not_written() -> None:
    q = draw(1, 2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative for npu::npu_fused_infer_attention_score is not implemented"):
        ops.npu_fused_infer_attention_score(q, q, q)[0].sum().backward()


def test_a_sequence_without_keys_gives_zeros_for_inference() -> None:
    q, k = draw(2, 1, 2, 8), draw(2, 5, 2, 8)
    heads: dict[str, Any] = {"num_heads": 2, "input_layout": "BSND", "softmax_lse_flag": True}
    out, lse = ops.npu_fused_infer_attention_score(q, k, k, actual_seq_lengths_kv=[5, 0], **heads)
    alone, of_it = ops.npu_fused_infer_attention_score(q[:1], k[:1], k[:1], **heads)
    assert torch.equal(out[:1], alone)
    assert torch.equal(lse[:1], of_it)
    assert out[1].abs().sum() == 0


def test_tokens_after_the_last_sequence_are_zero() -> None:
    q = draw(5, 2, 4)
    out = ops.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=[3, 0], actual_seq_kvlen=[3, 0])[0]
    assert out[3:].abs().sum() == 0
    assert out[:3].abs().min() > 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input_layout": "BDSN"}, RuntimeError, "input_layout should be BSH/SBH/BSND/BNSD/TND, but got 'BDSN'"),
        ({"sparse_mode": 9}, RuntimeError, r"range of \[0,6\], but got 9"),
        ({"sparse_mode": 5, "atten_mask": torch.ones(3, 3).bool()}, RuntimeError, "requires one prefix for each"),
        ({"sparse_mode": 6, "atten_mask": TEMPLATE, "prefix": [1]}, RuntimeError, "atten_mask of shape 3072x2048"),
        ({"sink": torch.ones(3)}, RuntimeError, r"sink must have dtype float32 and shape \[2\]"),
        ({"keep_prob": 0.0}, RuntimeError, r"keep_prob must be in range of \(0, 1\]"),
        ({"head_num": 4}, RuntimeError, "head_num is 4, but query has 2 heads"),
        ({"pse": torch.ones(1)}, RuntimeError, r"pse must have shape \[B\|1,2,Sq\|1,Skv\]"),
        ({"atten_mask": torch.ones(3, 3)}, RuntimeError, "atten_mask must be bool or uint8"),
        (
            {"atten_mask": torch.ones(3, 3).bool(), "sparse_mode": 2},
            RuntimeError,
            "requires an atten_mask of shape 2048x2048",
        ),
        ({"key": torch.ones(1, 2, 3, 4).half()}, RuntimeError, "must have the same dtype"),
    ],
)
def test_attention_refuses_what_the_operator_refuses(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    q = torch.ones(1, 2, 3, 4)
    call: dict[str, Any] = {"query": q, "key": q, "value": q, "head_num": 2, "input_layout": "BNSD", **change}
    with pytest.raises(error, match=message):
        ops.npu_fusion_attention(**call)


@pytest.mark.parametrize("lengths", [([], []), ([2], [2, 4]), ([2, 9], [2, 4]), ([3, 2], [2, 4])])
def test_lengths_that_do_not_fit_are_refused(lengths: tuple[list[int], list[int]]) -> None:
    q = torch.ones(4, 2, 4)
    with pytest.raises(RuntimeError, match="actual_seq_qlen and actual_seq_kvlen must"):
        ops.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=lengths[0], actual_seq_kvlen=lengths[1])


def test_rms_norm_equals_torch_with_gradients() -> None:
    x, gamma = draw(3, 4, 6, requires_grad=True), draw(6, seed=1, requires_grad=True)
    y, rstd = ops.npu_rms_norm(x, gamma, 1e-5)
    reference = functional.rms_norm(x, (6,), gamma, 1e-5)
    torch.testing.assert_close(y, reference)
    assert (rstd.shape, rstd.requires_grad) == ((3, 4, 1), False)
    for mine, other in zip(
        torch.autograd.grad(y.square().sum(), (x, gamma)),
        torch.autograd.grad(reference.square().sum(), (x, gamma)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_rms_norm_rounds_once() -> None:
    x, gamma = draw(64, 128).bfloat16(), draw(128, seed=1).bfloat16()
    exact = functional.rms_norm(x.double(), (128,), gamma.double(), 1e-6).bfloat16()
    assert torch.equal(ops.npu_rms_norm(x, gamma)[0], exact)


def test_rms_norm_refuses_a_gamma_of_another_shape() -> None:
    with pytest.raises(RuntimeError, match="shape of gamma must match the last dimensions"):
        ops.npu_rms_norm(torch.ones(2, 4), torch.ones(3))


def test_add_rms_norm_computes_and_has_no_gradient() -> None:
    x, gamma = draw(2, 4, requires_grad=True), torch.ones(4)
    y, _, added = ops.npu_add_rms_norm(x, x.detach(), gamma)
    torch.testing.assert_close(added, 2 * x)
    torch.testing.assert_close(y, ops.npu_rms_norm(2 * x, gamma)[0])
    with pytest.raises(RuntimeError, match="derivative for npu::npu_add_rms_norm is not implemented"):
        y.sum().backward()


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_is_a_rotation(mode: str) -> None:
    x, angle = draw(1, 2, 3, 8), draw(1, 1, 3, 4, seed=1)
    spread = torch.cat([angle, angle], -1) if mode == "half" else angle.repeat_interleave(2, -1)
    pair = (
        (lambda t: torch.complex(*t.chunk(2, -1)))
        if mode == "half"
        else (lambda t: torch.complex(t[..., ::2], t[..., 1::2]))
    )
    turned = ops.npu_rotary_mul(x, spread.cos(), spread.sin(), mode)
    torch.testing.assert_close(pair(turned), pair(x) * torch.polar(torch.ones_like(angle), angle))


def test_rotary_mul_refuses_half_width_angles() -> None:
    with pytest.raises(RuntimeError, match="must have the full width 8"):
        ops.npu_rotary_mul(torch.ones(1, 2, 3, 8), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4))


def test_swiglu_gates_with_the_first_half() -> None:
    x = draw(3, 8, requires_grad=True)
    y = ops.npu_swiglu(x)
    torch.testing.assert_close(y, x[:, :4] * torch.sigmoid(x[:, :4]) * x[:, 4:])
    y.sum().backward()
    torch.testing.assert_close(x.grad[:, 4:], functional.silu(x[:, :4]))
    with pytest.raises(RuntimeError, match="must be even, but is 3"):
        ops.npu_swiglu(torch.ones(2, 3))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_both_forms(approximate: str) -> None:
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    exact = torch.erf(x / math.sqrt(2)) if approximate == "none" else torch.tanh(inner)
    torch.testing.assert_close(ops.npu_gelu(x, approximate=approximate), x / 2 * (1 + exact))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_equals_torch(reduction: str) -> None:
    logits, target = draw(4, 5, requires_grad=True), torch.tensor([0, 4, -100, 2])
    loss, log_prob, *_ = ops.npu_cross_entropy_loss(logits, target, reduction=reduction)
    reference = functional.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(loss, reference.reshape(-1))
    assert not log_prob.requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(loss.sum(), logits)[0], torch.autograd.grad(reference.sum(), logits)[0]
    )


def test_grouped_matmul_splits_rows_by_ends_or_counts() -> None:
    x, w = draw(5, 3), draw(2, 3, 4, seed=1)
    reference = torch.cat([x[:2] @ w[0], x[2:] @ w[1]])
    for groups, kind in (([2, 5], 0), ([2, 3], 1)):
        found = ops.npu_grouped_matmul(
            [x], [w], group_list=torch.tensor(groups), split_item=2, group_type=0, group_list_type=kind
        )
        torch.testing.assert_close(found, [reference])


def test_grouped_matmul_splits_the_inner_dimension() -> None:
    x, w = draw(3, 5), draw(5, 4, seed=1)
    (found,) = ops.npu_grouped_matmul([x], [w], group_list=[2, 5], split_item=3, group_type=2)
    torch.testing.assert_close(found, torch.stack([x[:, :2] @ w[:2], x[:, 2:] @ w[2:]]))


@pytest.mark.parametrize(("kind", "groups"), [(0, [2, 4]), (1, [2, 2])])
def test_grouped_matmul_leaves_rows_behind_the_groups_of_a_tensor(kind: int, groups: list[int]) -> None:
    x, w = draw(5, 3), draw(2, 3, 4)
    counted = {"group_list": torch.tensor(groups), "group_list_type": kind, "group_type": 0}
    (found,) = ops.npu_grouped_matmul([x], [w], split_item=2, **counted)
    torch.testing.assert_close(found, torch.cat((x[:2] @ w[0], x[2:4] @ w[1], torch.zeros(1, 4))))
    with pytest.raises(RuntimeError, match="the last end must be 5"):
        ops.npu_grouped_matmul([x], [w], split_item=1, **counted)
    with pytest.raises(RuntimeError, match="the last end must be 3"):
        ops.npu_grouped_matmul([x[:3]], [w], split_item=2, **counted)


def test_grouped_matmul_has_no_gradient_and_refuses_groups_that_do_not_cover() -> None:
    x, w = draw(5, 3, requires_grad=True), draw(2, 3, 4)
    found = ops.npu_grouped_matmul([x], [w], group_list=[2, 5], split_item=2, group_type=0)
    with pytest.raises(RuntimeError, match="npu_grouped_matmul is not implemented"):
        found[0].sum().backward()
    with pytest.raises(RuntimeError, match="the last end must be 5"):
        ops.npu_grouped_matmul([x], [w], group_list=[2, 4], split_item=2, group_type=0)


def test_permute_sorts_by_expert_and_unpermute_takes_it_back() -> None:
    tokens = draw(4, 3, requires_grad=True)
    experts = torch.tensor([[1, 0], [0, 2], [2, 1], [0, 1]])
    permuted, places = ops.npu_moe_token_permute(tokens, experts)
    assert places.dtype == torch.int32
    by_expert = [t for e in range(3) for t in range(4) if e in experts[t]]
    torch.testing.assert_close(permuted, tokens[by_expert])
    probs = torch.full((4, 2), 0.5)
    back = ops.npu_moe_token_unpermute(permuted, places, probs)
    torch.testing.assert_close(back, tokens)
    torch.testing.assert_close(torch.autograd.grad(back.sum(), tokens)[0], torch.ones(4, 3))


def test_dropped_copies_count_as_zeros() -> None:
    tokens = draw(3, 2)
    permuted, places = ops.npu_moe_token_permute(tokens, torch.tensor([2, 0, 1]), num_out_tokens=2)
    torch.testing.assert_close(permuted, tokens[[1, 2]])
    expected_back = tokens.clone()
    expected_back[0] = 0
    torch.testing.assert_close(ops.npu_moe_token_unpermute(permuted, places), expected_back)


def test_apply_adam_w_equals_torch() -> None:
    parameter = torch.nn.Parameter(draw(4))
    mine, first, second = parameter.detach().clone(), torch.zeros(4), torch.zeros(4)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1)
    for step in range(1, 4):
        grad = draw(4, seed=step)
        parameter.grad = grad.clone()
        optimizer.step()
        ops.npu_apply_adam_w(
            0.9 ** (step - 1), 0.99 ** (step - 1), 0.1, 0.1, 0.9, 0.99, 1e-6, grad, None, False, False,
            out=(mine, first, second),
        )  # fmt: skip
    torch.testing.assert_close(mine, parameter.detach())


@pytest.mark.filterwarnings("ignore:Cannot create tensor with interal format")
@pytest.mark.usefixtures("npu")  # the device knows its format
def test_a_format_cast_keeps_values_and_refuses_unknown_formats() -> None:
    x = draw(2, 3)
    assert torch.equal(ops.npu_format_cast(x, 29), x)
    with pytest.raises(RuntimeError, match="but got 7"):
        ops.npu_format_cast(x, 7)


def test_softmax_gating_keeps_the_greatest_and_skips_the_finished() -> None:
    x = draw(4, 6)
    weights, experts, rows = ops.npu_moe_gating_top_k_softmax(x, torch.tensor([False, True, False, False]), 2)
    best = x.softmax(-1).topk(2)
    torch.testing.assert_close(weights, best.values)
    assert experts[1].tolist() == [6, 6]
    assert torch.equal(experts[[0, 2, 3]].long(), best.indices[[0, 2, 3]])
    assert rows.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_gating_by_groups_steers_by_the_bias_and_weighs_without_it() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.5, 0.6, 2.5, 0.1]])
    bias = torch.tensor([0.0, 0, 0, 0, 9, 9, 0, 0])
    weights, experts, scores = ops.npu_moe_gating_top_k(
        x,
        2,
        bias=bias,
        k_group=1,
        group_count=4,
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=2.5,
        out_flag=True,
    )
    assert sorted(experts[0].tolist()) == [4, 5]
    sigmoid = x.sigmoid()[0, experts[0].long()]
    torch.testing.assert_close(weights[0], 2.5 * sigmoid / sigmoid.sum())
    torch.testing.assert_close(scores, x.sigmoid())
    best = ops.npu_moe_gating_top_k(x, 1, k_group=2, group_count=4)[1]
    assert best.tolist() == [[3]]
    with pytest.raises(RuntimeError, match="k_group=5 is out of range for 8 experts"):
        ops.npu_moe_gating_top_k(x, 1, k_group=5, group_count=4)


def test_a_routing_map_copies_tokens_and_takes_them_back() -> None:
    tokens, probs = draw(3, 4, requires_grad=True), draw(3, 4, seed=1, requires_grad=True)
    routing = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
    rows, taken, places = ops.npu_moe_token_permute_with_routing_map(tokens, routing, probs=probs)
    order = [(e, t) for e in range(4) for t in range(3) if routing[t, e]]
    assert torch.equal(rows, tokens[[t for _, t in order]])
    assert torch.equal(taken, torch.stack([probs[t, e] for e, t in order]))
    back = ops.npu_moe_token_unpermute_with_routing_map(rows, places, [3, 4], probs=probs, routing_map=routing)
    expectation = tokens * (probs * routing).sum(1, keepdim=True)
    torch.testing.assert_close(back, expectation)
    for mine, other in zip(
        *(torch.autograd.grad(t.square().sum(), (tokens, probs)) for t in (back, expectation)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_a_routing_map_with_a_capacity_fills_each_expert() -> None:
    tokens, probs = draw(3, 4), torch.rand(3, 2, generator=torch.Generator().manual_seed(0))
    routing = torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.bool)
    rows, taken, places = ops.npu_moe_token_permute_with_routing_map(
        tokens, routing, probs=probs, num_out_tokens=4, drop_and_pad=True
    )
    assert places.tolist() == [0, 1, 1, 0]  # the second expert has one token, and takes the first as well
    assert torch.equal(rows, tokens[places.long()])
    assert torch.equal(taken, torch.stack([probs[0, 0], probs[1, 0], probs[1, 1], probs[0, 1]]))
    back = ops.npu_moe_token_unpermute_with_routing_map(rows, places, [3, 4], probs=probs, drop_and_pad=True)
    torch.testing.assert_close(back[0], tokens[0] * (probs[0, 0] + probs[0, 1]))
    assert back[2].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("capacity", [None, 2])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_gradients_by_a_routing_map_are_those_of_its_operators(capacity: int | None, weighted: bool) -> None:
    tokens, probs = draw(3, 4, requires_grad=True), draw(3, 4, seed=1, requires_grad=True)
    routing = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
    pads: dict[str, Any] = {"drop_and_pad": capacity is not None}
    rows, taken, places = ops.npu_moe_token_permute_with_routing_map(
        tokens, routing, probs=probs, num_out_tokens=capacity and 4 * capacity, **pads
    )
    of_rows, of_taken = draw(*rows.shape, seed=2), draw(*taken.shape, seed=3)
    found = ops.npu_moe_token_permute_with_routing_map_grad(
        of_rows, of_taken if weighted else None, places, routing, 4, 3, **pads
    )
    ahead = (rows * of_rows).sum() + (taken * of_taken).sum() * weighted
    expected = torch.autograd.grad(ahead, (tokens, probs), retain_graph=True)
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) is not weighted
    if weighted:
        torch.testing.assert_close(found[1], expected[1])

    rows = rows.detach().requires_grad_()
    back: dict[str, Any] = {"probs": probs if weighted else None, "routing_map": routing, **pads}
    out, index, token, _ = ops._npu_moe_token_unpermute_with_routing_map(rows, places, [3, 4], **back)
    torch.testing.assert_close(out, ops.npu_moe_token_unpermute_with_routing_map(rows, places, [3, 4], **back))
    of_out = draw(3, 4, seed=4)
    of_rows, of_probs = ops.npu_moe_token_unpermute_with_routing_map_grad(
        of_out,
        index,
        token,
        routing,
        rows if weighted else None,
        probs if weighted else None,
        restore_shape=[3, 4],
        **pads,
    )
    wanted = (rows, probs) if weighted else (rows,)
    found = (of_rows, of_probs) if weighted else (of_rows,)
    for mine, other in zip(found, torch.autograd.grad((out * of_out).sum(), wanted), strict=True):
        torch.testing.assert_close(mine, other)


def test_gradients_of_probs_by_a_routing_map_need_the_rows_and_the_map() -> None:
    places = torch.tensor([0, 1, 2], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="probs requires permuted_tokens and routing_map"):
        ops.npu_moe_token_unpermute_with_routing_map_grad(
            draw(3, 4), places, places, None, draw(3, 4), draw(3, 2), False, [3, 4]
        )


def test_init_routing_sorts_and_finalize_routing_takes_back() -> None:
    x, experts = draw(3, 4), torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)
    rows, places, counts, scales = ops.npu_moe_init_routing_v2(
        x, experts, expert_num=3, expert_tokens_num_flag=True, expert_tokens_num_type=1, scale=torch.arange(3.0)
    )
    assert counts.tolist() == [2, 2, 2]
    assert torch.equal(rows, x[[0, 2, 1, 2, 0, 1]])
    assert scales.tolist() == [0, 2, 1, 2, 0, 1]
    assert places.tolist() == [4, 0, 2, 5, 1, 3]
    weights = draw(3, 2, seed=1)
    back = ops.npu_moe_finalize_routing(rows, x, None, None, weights, places, None, drop_pad_mode=2)
    torch.testing.assert_close(back, x + x * weights.sum(1, keepdim=True))
    by_column = places.view(3, 2).t().reshape(-1)
    torch.testing.assert_close(ops.npu_moe_finalize_routing(rows, x, None, None, weights, by_column, None), back)
    some, places, counts, _ = ops.npu_moe_init_routing_v2(
        x, experts, expert_num=3, active_expert_range=[1, 2], expert_tokens_num_flag=True
    )
    assert torch.equal(some, torch.cat((x[[1, 2]], torch.zeros(4, 4))))
    assert (places.tolist(), counts.tolist()) == ([-1, -1, 0, -1, -1, 1], [2])
    few, *_, scales = ops.npu_moe_init_routing_v2(
        x, experts, expert_num=3, active_expert_range=[1, 2], active_num=3, scale=torch.ones(3)
    )
    assert torch.equal(few, some[:3])
    assert scales.tolist() == [1, 1, 0]
    assert ops.npu_moe_compute_expert_tokens(torch.tensor([0, 0, 2, 2, 2]), 3).tolist() == [2, 2, 5]


def test_the_older_init_routing_sorts_copies_that_are_counted_column_by_column() -> None:
    x, experts = draw(3, 4), torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)
    row_idx = torch.arange(6, dtype=torch.int32).view(2, 3).t().contiguous()
    rows, places, sorted_experts = ops.npu_moe_init_routing(x, row_idx, experts, 3)
    assert sorted_experts.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(rows, x[[0, 2, 1, 2, 0, 1]])
    weights = draw(3, 2, seed=1)
    back = ops.npu_moe_finalize_routing(rows, x, None, None, weights, places, None)
    torch.testing.assert_close(back, x + x * weights.sum(1, keepdim=True))
    assert len(ops.npu_moe_init_routing(x, row_idx, experts, 2)[0]) == 4
    with pytest.raises(RuntimeError, match="row_idx must be int32, but is"):
        ops.npu_moe_init_routing(x, row_idx.long(), experts, 3)


def test_grouped_matmul_add_adds_each_groups_product() -> None:
    total, x, w = torch.ones(2, 3, 4), draw(5, 3), draw(5, 4, seed=1)
    out = ops.npu_grouped_matmul_add_(total, x, w, torch.tensor([2, 5]))
    assert out is total
    torch.testing.assert_close(total, 1 + torch.stack([x[:2].t() @ w[:2], x[2:].t() @ w[2:]]))
    with pytest.raises(RuntimeError, match="the last end must be 5"):
        ops.npu_grouped_matmul_add_(total, x, w, torch.tensor([2, 4]))


def _angles(positions: Any, width: int) -> tuple[Any, Any]:
    """Return the angles [T,width] of one head at positions, and a table of cosines and sines for them."""
    table = torch.outer(torch.arange(50.0), torch.logspace(0, -2, width))
    return table[positions], torch.cat([table.cos(), table.sin()], -1)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_mrope_turns_the_start_of_each_head_by_the_positions_of_its_section(mode: str) -> None:
    positions = torch.tensor([[3, 4, 5], [3, 40, 0], [3, 7, 9]])
    query, key = torch.randn(3, 2 * 20), torch.randn(3, 20)
    angles, table = zip(*(_angles(row, 8) for row in positions), strict=True)
    own = torch.cat([angles[0][:, :2], angles[1][:, 2:5], angles[2][:, 5:]], -1)
    spread = torch.cat([own, own], -1) if mode == "half" else own.repeat_interleave(2, -1)
    turned = ops.npu_mrope(positions, query, key, table[0], 20, mrope_section=[2, 3, 3], rotary_mode=mode)
    for mine, x in zip(turned, (query, key), strict=True):
        heads = x.unflatten(1, (-1, 20))
        first = ops.npu_rotary_mul(
            heads[None, ..., :16], spread.cos()[None, :, None], spread.sin()[None, :, None], mode
        )
        torch.testing.assert_close(mine, torch.cat([first[0], heads[..., 16:]], -1).flatten(1))


def test_mrope_takes_one_position_of_each_token_without_sections() -> None:
    positions, query = torch.tensor([3, 40]), torch.randn(2, 16)
    _, table = _angles(positions, 8)
    one, _ = ops.npu_mrope(positions, query, query, table, 16)
    three, _ = ops.npu_mrope(positions.expand(3, 2), query, query, table, 16, mrope_section=[2, 3, 3])
    torch.testing.assert_close(one, three)


@pytest.mark.parametrize(
    ("positions", "sections", "size", "words"),
    [
        (torch.zeros(3, 2, dtype=torch.long), [2, 3, 4], 16, r"add up to 8, but got .*\[2, 3, 4\]"),
        (torch.zeros(2, dtype=torch.long), [2, 3, 3], 16, r"mrope_section \[0,0,0\]"),
        (torch.zeros(2), None, 16, "integer positions"),
        (torch.zeros(2, dtype=torch.long), None, 10, r"query must have shape \[tokens, heads \* 10\]"),
    ],
)
def test_mrope_refuses_what_does_not_go_together(positions: Any, sections: Any, size: int, words: str) -> None:
    x = torch.zeros(2, 16)
    with pytest.raises(RuntimeError, match=words):
        ops.npu_mrope(positions, x, x, torch.zeros(50, 16), size, mrope_section=sections)


def test_apply_rotary_turns_query_and_key_alike() -> None:
    q, k, angles = draw(2, 3, 4, 8), draw(2, 3, 1, 8, seed=1), draw(1, 3, 1, 8, seed=2)
    turned, turned_key = ops.npu_apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close(turned, ops.npu_rotary_mul(q, angles.cos(), angles.sin()))
    torch.testing.assert_close(turned_key, ops.npu_rotary_mul(k, angles.cos(), angles.sin()))
    with pytest.raises(RuntimeError, match="layout should be"):
        ops.npu_apply_rotary_pos_emb(q, k, angles, angles, "NBSD")


def test_silu_and_dtype_casts_are_torchs_with_gradients() -> None:
    x = draw(3, 4, requires_grad=True)
    torch.testing.assert_close(ops.npu_silu(x), functional.silu(x))
    for dtype in (torch.bfloat16, 15):
        cast = ops.npu_dtype_cast(x, dtype)
        assert cast.dtype is torch.bfloat16
        assert torch.equal(torch.autograd.grad(cast.sum(), x)[0], torch.ones(3, 4))
    with pytest.raises(NotImplementedError, match="dtype 285"):
        ops.npu_dtype_cast(x, 285)


@pytest.mark.parametrize("name", ["fast_gelu", "npu_fast_gelu"])
def test_fast_gelu_is_the_documented_quotient(name: str) -> None:
    x = draw(40, dtype=torch.float64).float().requires_grad_()
    quotient = x * (0.851 * (x - x.abs())).exp() / (1 + (-1.702 * x.abs()).exp())
    torch.testing.assert_close(getattr(ops, name)(x), quotient)
    assert getattr(ops, name)(x.bfloat16()).dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(getattr(ops, name)(x).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(quotient.sum(), x)[0])


def test_bmm_broadcasts_and_sums_over_what_its_sizes_leave_out() -> None:
    a, b = draw(2, 5, 3, 4), draw(5, 4, 6, seed=1)
    full = torch.einsum("xbmk,bkn->xbmn", a, b)
    torch.testing.assert_close(ops.npu_bmmV2(a, b, []), full)
    torch.testing.assert_close(ops.npu_bmmV2(a, b, [5, 3, 6]), full.sum(0))
    torch.testing.assert_close(ops.npu_bmmV2(a, b, [1, 5, 3, 6]), full.sum(0, keepdim=True))
    with pytest.raises(RuntimeError):
        ops.npu_bmmV2(a, b, [5, 3, 7])


def test_linear_takes_matrices_only() -> None:
    x, weight, bias = draw(3, 4), draw(5, 4, seed=1), draw(5, seed=2)
    torch.testing.assert_close(ops.npu_linear(x, weight, bias), torch.einsum("mk,nk->mn", x, weight) + bias)
    with pytest.raises(RuntimeError, match="npu_linear: input and weight must have 2 dimensions, but have 3 and 2"):
        ops.npu_linear(x[None], weight)


def test_a_masked_softmax_gives_a_masked_score_next_to_nothing() -> None:
    x, mask = draw(2, 32, 64).requires_grad_(), torch.ones(32, 64, dtype=torch.bool).triu(1)
    weights = (x * 0.5).exp() * ~mask
    torch.testing.assert_close(ops.npu_scaled_masked_softmax(x, mask, 0.5), weights / weights.sum(-1, keepdim=True))
    everything = ops.npu_scaled_masked_softmax(x, torch.ones_like(mask), 0.5)
    torch.testing.assert_close(everything, torch.full_like(x, 1 / 64))
    with pytest.raises(RuntimeError, match="multiples of 32 from 32 to 4096"):
        ops.npu_scaled_masked_softmax(x[:, :31], mask[:31])
    with pytest.raises(RuntimeError, match="mask must be bool"):
        ops.npu_scaled_masked_softmax(x, mask.float())


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_batches_has_them_behind_the_rows(turned: bool) -> None:
    x, w = draw(3, 5, 16), draw(3, 16, 32, seed=1)
    given = {"perm_x1": (1, 0, 2)} if turned else {}
    out = ops.npu_transpose_batchmatmul(x.transpose(0, 1) if turned else x, w, perm_y=(1, 0, 2), **given)
    torch.testing.assert_close(out, torch.einsum("bmk,bkn->mbn", x, w))
    split = ops.npu_transpose_batchmatmul(x, w, batch_split_factor=2)
    torch.testing.assert_close(split, out.reshape(5, 2, 48).transpose(0, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"perm_y": (0, 1, 2)}, "perm_y must be"),
        ({"perm_x2": (0, 2, 1)}, "perm_x2 must be"),
        ({"bias": torch.zeros(1)}, "bias is not supported"),
        ({"weight": draw(3, 16, 32).half()}, "but are torch.float32 and torch.float16"),
        ({"weight": draw(2, 16, 32)}, "expected"),
        ({"weight": draw(3, 16, 24)}, "multiples of 16"),
        ({"batch_split_factor": 3}, "batch_split_factor"),
    ],
)
def test_what_a_product_of_batches_refuses(changes: dict[str, Any], words: str) -> None:
    given = {"input": draw(3, 5, 16), "weight": draw(3, 16, 32)} | changes
    with pytest.raises(RuntimeError, match=f"^npu_transpose_batchmatmul: .*{words}"):
        ops.npu_transpose_batchmatmul(given.pop("input"), given.pop("weight"), **given)
