"""The padding helpers agree with their definition, a loop over rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from verl_npu.errors import ApplyError  # noqa: E402
from verl_npu.features.attention.padding import index_first_axis, pad_input, rearrange, unpad_input  # noqa: E402

shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2))


@st.composite
def padded(draw):
    batch, seqlen, extra = draw(shapes)
    mask = torch.tensor(
        draw(st.lists(st.lists(st.integers(0, 1), min_size=seqlen, max_size=seqlen), min_size=batch, max_size=batch))
    )
    values = torch.arange(batch * seqlen * 3**extra, dtype=torch.float64).view(batch, seqlen, *[3] * extra) + 1
    return values, mask


@settings(max_examples=100)
@given(padded())
def test_unpad_takes_the_kept_tokens_row_by_row(case) -> None:
    values, mask = case
    tokens, indices, cu_seqlens, longest, used = unpad_input(values, mask)
    rows = [[values[b, s] for s in range(mask.shape[1]) if mask[b, s]] for b in range(mask.shape[0])]
    lengths = [len(row) for row in rows]
    expected = [token for row in rows for token in row]
    assert tokens.shape[0] == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(tokens, expected, strict=True))
    assert indices.tolist() == [n for n, kept in enumerate(mask.flatten().tolist()) if kept]
    assert cu_seqlens.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert (cu_seqlens.dtype, used.dtype) == (torch.int32, torch.int32)
    assert (longest, used.tolist()) == (max(lengths), lengths)


@settings(max_examples=100)
@given(padded())
def test_pad_undoes_unpad_and_leaves_zeros(case) -> None:
    values, mask = case
    tokens, indices, *_ = unpad_input(values, mask)
    kept = mask.view(*mask.shape, *[1] * (values.dim() - 2))
    assert torch.equal(pad_input(tokens, indices, *mask.shape), values * kept)


def test_unused_tokens_are_taken_but_not_counted_as_used() -> None:
    mask, unused = torch.tensor([[1, 1, 0]]), torch.tensor([[0, 0, 1]])
    tokens, _, cu_seqlens, longest, used = unpad_input(torch.arange(3.0).view(1, 3), mask, unused)
    assert (tokens.tolist(), cu_seqlens.tolist(), longest, used.tolist()) == ([0, 1, 2], [0, 3], 3, [2])


def test_gradients_flow_through_all_three() -> None:
    values = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])

    def there_and_back(x):
        tokens, indices, *_ = unpad_input(x, mask)
        return pad_input(index_first_axis(tokens, torch.tensor([3, 1, 0, 2])), indices, 2, 3)

    assert torch.autograd.gradcheck(there_and_back, (values,))


def test_rearrange_merges_batch_and_sequence() -> None:
    x = torch.arange(24).view(2, 3, 4)
    assert torch.equal(rearrange(x, "b s ... -> (b s) ..."), x.reshape(6, 4))
    expected = torch.stack([x[:, b, s] for b in range(3) for s in range(4)])
    assert torch.equal(rearrange(x, "c b s ... -> (b s) c ..."), expected)


def test_rearrange_refuses_other_patterns_by_name() -> None:
    with pytest.raises(ApplyError, match="b s -> s b"):
        rearrange(torch.ones(2, 3), "b s -> s b")
