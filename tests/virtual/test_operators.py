"""The reference operators against formulas written another way. They are plain torch: the CPU serves."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from verl_npu.virtual import operators as ops  # noqa: E402

TEMPLATE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
functional = torch.nn.functional


def draw(*shape: int, seed: int = 0, **options: Any) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


def kept(mode: int, i: int, j: int, rows: int, columns: int, before: int, after: int) -> bool:
    """The documented rule, score by score."""
    shift = columns - rows
    return {
        0: j - i <= after and i - j <= before,
        1: True,
        2: j <= i,
        3: j <= i + shift,
        4: j - i - shift <= after and i + shift - j <= before,
    }[mode]


def expected(q: Any, k: Any, v: Any, keep: Any, scale: float) -> Any:
    """[B,N,S,D] through torch's own attention; rows that keep nothing are zero."""
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
        ({"sparse_mode": 5}, NotImplementedError, "sparse_mode 5 is not implemented"),
        ({"keep_prob": 0.0}, RuntimeError, r"keep_prob must be in range of \(0, 1\]"),
        ({"head_num": 4}, RuntimeError, "head_num is 4, but query has 2 heads"),
        ({"pse": torch.ones(1)}, NotImplementedError, "pse is not implemented"),
        ({"atten_mask": torch.ones(3, 3)}, RuntimeError, "atten_mask must be bool or uint8"),
        ({"atten_mask": torch.ones(3, 3).bool(), "sparse_mode": 2}, RuntimeError, "takes an atten_mask of 2048x2048"),
        ({"key": torch.ones(1, 2, 3, 4).half()}, RuntimeError, "must have one dtype"),
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
    with pytest.raises(RuntimeError, match="gamma must have the shape of the last dimensions"):
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


def test_grouped_matmul_has_no_gradient_and_refuses_groups_that_do_not_cover() -> None:
    x, w = draw(5, 3, requires_grad=True), draw(2, 3, 4)
    found = ops.npu_grouped_matmul([x], [w], group_list=[2, 5], split_item=2, group_type=0)
    with pytest.raises(RuntimeError, match="npu_grouped_matmul is not implemented"):
        found[0].sum().backward()
    with pytest.raises(RuntimeError, match="must grow up to 5"):
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


def test_a_format_cast_keeps_values_and_refuses_unknown_formats() -> None:
    x = draw(2, 3)
    assert torch.equal(ops.npu_format_cast(x, 29), x)
    with pytest.raises(RuntimeError, match="but got 7"):
        ops.npu_format_cast(x, 7)
