"""Properties of the reference operators over drawn shapes, against torch's own functions; the CPU is enough."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from virtual_ascend import operators as ops  # noqa: E402

functional = torch.nn.functional
TEMPLATE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
sizes = st.integers(1, 5)
seeds = st.integers(0, 2**20)


def draw(seed: int, *shape: int, **options: Any) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, **options)


def alike(ours: Any, theirs: Any, inputs: tuple[Any, ...], seed: int) -> None:
    """Check that values, and the gradients of every input, agree."""
    torch.testing.assert_close(ours, theirs)
    weights = draw(seed + 1, *theirs.shape)
    mine, others = (torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True) for out in (ours, theirs))
    for one, other, given_input in zip(mine, others, inputs, strict=True):
        nothing = torch.zeros_like(given_input)
        torch.testing.assert_close(nothing if one is None else one, nothing if other is None else other)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=4),
    causal=st.sampled_from([None, 2, 3]),
    groups=st.integers(1, 3),
    seed=seeds,
)
def test_packed_sequences_see_themselves_alone(
    lengths: list[tuple[int, int]], causal: int | None, groups: int, seed: int
) -> None:
    # A query that keeps no key has no defined value in torch's attention.
    lengths = [(rows, max(rows, columns)) if causal == 3 else (rows, columns) for rows, columns in lengths]
    rows, columns = (sum(part) for part in zip(*lengths, strict=True))
    if rows == 0 or lengths[-1][0] == 0:
        return
    q = draw(seed, rows, 2 * groups, 4, requires_grad=True)
    k, v = (draw(seed + n, columns, 2, 4, requires_grad=True) for n in (2, 3))
    ends = [list(accumulate(part)) for part in zip(*lengths, strict=True)]
    mode = {} if causal is None else {"sparse_mode": causal, "atten_mask": TEMPLATE}
    ours = ops.npu_fusion_attention(
        q, k, v, 2 * groups, "TND", scale=0.3, actual_seq_qlen=ends[0], actual_seq_kvlen=ends[1], **mode
    )[0]
    parts, row, column = [], 0, 0
    for height, width in lengths:
        i, j = torch.arange(height).unsqueeze(1), torch.arange(width)
        shift = width - height if causal == 3 else 0
        keep = torch.ones(height, width, dtype=torch.bool) if causal is None else j <= i + shift
        one, two, three = (
            t.transpose(0, 1).unsqueeze(0)
            for t in (q[row : row + height], k[column : column + width], v[column : column + width])
        )
        two, three = (t.repeat_interleave(groups, 1) for t in (two, three))
        out = functional.scaled_dot_product_attention(one, two, three, attn_mask=keep, scale=0.3)
        parts.append(out[0].transpose(0, 1))
        row, column = row + height, column + width
    alike(ours, torch.cat(parts), (q, k, v), seed)


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(sizes, max_size=2), normed=st.lists(sizes, min_size=1, max_size=2), seed=seeds)
def test_rms_norm_over_any_last_dimensions(batch: list[int], normed: list[int], seed: int) -> None:
    x, gamma = draw(seed, *batch, *normed, requires_grad=True), draw(seed + 5, *normed, requires_grad=True)
    ours, rstd = ops.npu_rms_norm(x, gamma, 1e-4)
    alike(ours, functional.rms_norm(x, normed, gamma, 1e-4), (x, gamma), seed)
    assert rstd.shape == (*batch, *[1] * len(normed))


@settings(max_examples=40, deadline=None)
@given(shape=st.lists(sizes, min_size=1, max_size=3), dim=st.integers(0, 2), seed=seeds)
def test_swiglu_along_any_dimension(shape: list[int], dim: int, seed: int) -> None:
    dim %= len(shape)
    shape[dim] *= 2
    x = draw(seed, *shape, requires_grad=True)
    gate, up = x.split(shape[dim] // 2, dim)
    for axis in (dim, dim - len(shape)):
        alike(ops.npu_swiglu(x, dim=axis), gate * torch.sigmoid(gate) * up, (x,), seed)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(sizes, sizes, sizes, sizes),
    whole=st.tuples(*[st.booleans()] * 3),
    paired=st.booleans(),
    seed=seeds,
)
def test_rotary_mul_is_a_product_of_complex_numbers(
    shape: tuple[int, ...], whole: tuple[bool, ...], paired: bool, seed: int
) -> None:
    x = draw(seed, *shape[:3], 2 * shape[3], requires_grad=True)
    angle = draw(seed + 7, *(size if here else 1 for size, here in zip(shape[:3], whole, strict=True)), shape[3])
    wide = angle.repeat_interleave(2, -1) if paired else torch.cat((angle, angle), -1)
    ours = ops.npu_rotary_mul(x, wide.cos(), wide.sin(), *(["interleave"] if paired else []))
    halves = (x[..., ::2], x[..., 1::2]) if paired else x.chunk(2, -1)
    turned = torch.complex(*halves) * torch.polar(torch.ones_like(angle), angle)
    both = (turned.real, turned.imag)
    alike(ours, torch.stack(both, -1).flatten(-2) if paired else torch.cat(both, -1), (x,), seed)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), inner=sizes, outer=sizes, data=st.data(), seed=seeds
)
def test_grouped_products_of_every_kind(counts: list[int], inner: int, outer: int, data: Any, seed: int) -> None:
    rows, groups = sum(counts), len(counts)
    if rows == 0:
        return
    as_counts, as_list, split = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(0, 3))
    given_groups = counts if as_counts else list(accumulate(counts))
    options = {"group_list": torch.tensor(given_groups), "group_list_type": int(as_counts), "split_item": split}
    x, weight = draw(seed, rows, inner), draw(seed + 3, groups, inner, outer)
    expected = [part @ weight[n] for n, part in enumerate(x.split(counts))]
    found = ops.npu_grouped_matmul([x], list(weight) if as_list else [weight], group_type=0, **options)
    torch.testing.assert_close(torch.cat(found), torch.cat(expected))
    assert len(found) == (1 if split >= 2 else groups)
    y = draw(seed + 4, rows, outer)
    (found,) = ops.npu_grouped_matmul([x.T], [y], group_type=2, **{**options, "split_item": 3})
    torch.testing.assert_close(
        found, torch.stack([a.T @ b for a, b in zip(x.split(counts), y.split(counts), strict=True)])
    )
    each = ops.npu_grouped_matmul(list(x.split(counts)), list(weight), group_type=-1, split_item=0)
    for one, other in zip(each, expected, strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=60, deadline=None)
@given(tokens=sizes, width=sizes, chosen=st.integers(0, 3), experts=sizes, dropped=st.integers(-6, 6), seed=seeds)
def test_tokens_go_to_their_experts_and_back(
    tokens: int, width: int, chosen: int, experts: int, dropped: int, seed: int
) -> None:
    x = draw(seed, tokens, width, requires_grad=True)
    copies = max(chosen, 1)
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, experts, (tokens, copies), generator=generator)
    probs = draw(seed + 9, tokens, copies, requires_grad=True) if chosen else None
    # Expert by expert, tokens in order: a loop over all pairs.
    pairs = [(t, c) for e in range(experts) for t in range(tokens) for c in range(copies) if indices[t, c] == e]
    kept = pairs if not dropped else pairs[:dropped]
    if not kept:
        return  # the documentation does not say what happens if everything is dropped
    permuted, places = ops.npu_moe_token_permute(x, indices if chosen else indices[:, 0], dropped or None)
    torch.testing.assert_close(permuted, torch.stack([x[t] for t, _ in kept]))
    assert places.dtype is torch.int32
    assert [pairs[place] for place in places.tolist()] == [(t, c) for t in range(tokens) for c in range(copies)]
    back = ops.npu_moe_token_unpermute(permuted, places, probs)
    rows = [
        sum(
            (x[t] * (1 if probs is None else probs[t, c]) for c in range(copies) if (t, c) in kept),
            start=torch.zeros(width),
        )
        for t in range(tokens)
    ]
    alike(back, torch.stack(rows) + 0 * x, (x,) if probs is None else (x, probs), seed)


@settings(max_examples=40, deadline=None)
@given(
    rows=sizes, classes=st.integers(2, 5), reduction=st.sampled_from(["mean", "sum", "none"]), weighted=st.booleans(),
    ignored=st.booleans(), seed=seeds
)  # fmt: skip
def test_cross_entropy_of_every_reduction(
    rows: int, classes: int, reduction: str, weighted: bool, ignored: bool, seed: int
) -> None:
    x = draw(seed, rows, classes, requires_grad=True)
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))
    if ignored and rows > 1:
        target[0] = -100
    weight = draw(seed + 2, classes).abs() + 0.1 if weighted else None
    ours, log_prob, *_ = ops.npu_cross_entropy_loss(x, target, weight, reduction)
    theirs = functional.cross_entropy(x, target, weight, reduction=reduction)
    alike(ours, theirs.reshape(-1), (x,), seed)
    torch.testing.assert_close(log_prob, x.log_softmax(-1).detach())
    assert not log_prob.requires_grad


@settings(max_examples=20, deadline=None)
@given(shape=st.lists(sizes, max_size=3), approximate=st.sampled_from(["none", "tanh"]), seed=seeds)
def test_gelu_of_any_shape(shape: list[int], approximate: str, seed: int) -> None:
    x = draw(seed, *shape, requires_grad=True)
    expected = functional.gelu(x.double(), approximate=approximate).float()
    alike(ops.npu_gelu(x, approximate=approximate), expected, (x,), seed)
