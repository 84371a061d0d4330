"""Where the heads, the sequences and the tokens of attention's tensors lie."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch import Tensor

__all__ = ["Layout", "by_head", "from_head", "layout_of", "sequences_of"]


class Layout(Enum):
    """Order of the dimensions: B batch, S sequence, N heads, D width of a head, H = N*D, T all tokens of a packed
    batch."""

    BSH = "BSH"
    SBH = "SBH"
    BSND = "BSND"
    BNSD = "BNSD"
    TND = "TND"


def layout_of(name: str) -> Layout:
    """The layout of a name; raises RuntimeError for another name."""
    try:
        return Layout(name)
    except ValueError:
        expected = "/".join(layout.value for layout in Layout)
        raise RuntimeError(f"npu_fusion_attention: input_layout should be {expected}, but got {name!r}") from None


def by_head(tensor: Tensor, layout: Layout, heads: int) -> Tensor:
    """From a dense layout to [B,N,S,D]."""
    if layout is Layout.BSH:
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)
    if layout is Layout.SBH:
        return tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    return tensor.transpose(1, 2) if layout is Layout.BSND else tensor


def from_head(tensor: Tensor, layout: Layout) -> Tensor:
    """From [B,N,S,D] to a dense layout."""
    if layout is Layout.BSH:
        return tensor.transpose(1, 2).flatten(2)
    if layout is Layout.SBH:
        return tensor.permute(2, 0, 1, 3).flatten(2)
    return tensor.transpose(1, 2) if layout is Layout.BSND else tensor


def sequences_of(
    query: Tensor, key: Tensor, queries: Sequence[int] | None, keys: Sequence[int] | None
) -> list[tuple[slice, slice]]:
    """The rows and columns of each sequence of a packed batch, from the cumulative lengths.

    Raises:
        RuntimeError: they are not there, or do not fit.
    """
    if not queries or not keys or len(queries) != len(keys):
        raise RuntimeError(
            "npu_fusion_attention: the size of actual_seq_qlen and actual_seq_kvlen must be the same and "
            "cannot be empty"
        )
    used = len(queries)
    while used > 1 and queries[used - 1] == 0:
        used -= 1  # trailing zeros switch sequences off
    blocks, row, column = [], 0, 0
    for row_end, column_end in zip(queries[:used], keys[:used], strict=True):
        if row_end < row or column_end < column or row_end > query.shape[0] or column_end > key.shape[0]:
            raise RuntimeError(
                f"npu_fusion_attention: actual_seq_qlen and actual_seq_kvlen must grow up to {query.shape[0]} and "
                f"{key.shape[0]} tokens, but got {list(queries)} and {list(keys)}"
            )
        blocks.append((slice(row, row_end), slice(column, column_end)))
        row, column = row_end, column_end
    return blocks
