"""The sequences of a batch for inference, apart: each as long as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["cache_lengths", "cached", "joined", "layouts", "sequences", "wider"]

_LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "BNSD_BSND", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")


def layouts(name: str) -> tuple[str, str]:
    """The layouts of query and result that `input_layout` stands for; raises RuntimeError for an unknown one."""
    if name not in _LAYOUTS:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: input_layout should be {'/'.join(_LAYOUTS)}, but got {name!r}"
        )
    query, _, result = name.partition("_")
    return query, result or query


def sequences(tensor: Tensor, layout: str, heads: int, lengths: Sequence[int] | None) -> list[Tensor]:
    """Each sequence as [N,S,D], as long as it is."""
    if layout == "TND":
        if not lengths:
            raise RuntimeError("npu_fused_infer_attention_score: TND takes the sequences' cumulative lengths")
        starts = [0, *lengths[:-1]]
        return [tensor[start:end].transpose(0, 1) for start, end in zip(starts, lengths, strict=True)]
    if layout == "BSH":
        tensor = tensor.unflatten(-1, (heads, -1))
    by_head = tensor if layout == "BNSD" else tensor.transpose(1, 2)
    if lengths is None:
        return list(by_head)
    if len(lengths) == 1:
        lengths = list(lengths) * by_head.shape[0]
    if len(lengths) != by_head.shape[0]:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: {len(lengths)} lengths for a batch of {by_head.shape[0]}"
        )
    return [sequence[:, :length] for sequence, length in zip(by_head, lengths, strict=True)]


def cache_lengths(lengths: Sequence[int] | None, count: int) -> list[int]:
    """The length of each sequence of a cache; raises RuntimeError without them."""
    if lengths is None or len(lengths) not in (1, count):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: a block_table needs actual_seq_lengths_kv of {count} sequences, but "
            f"got {lengths}"
        )
    return list(lengths) * count if len(lengths) == 1 else list(lengths)


def cached(cache: Tensor, table: Tensor, size: int, heads: int, lengths: list[int]) -> list[Tensor]:
    """Each sequence of a paged cache as [N,S,D], from its blocks."""
    blocks = cache.unflatten(-1, (heads, -1)).transpose(1, 2) if cache.dim() == 3 else cache  # [blocks,N,size,D]
    if blocks.shape[2] != size:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: block_size is {size}, but blocks have {blocks.shape[2]} rows"
        )
    if table.dim() != 2 or table.shape[0] != len(lengths):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: block_table must be [{len(lengths)}, blocks], one row of each "
            f"sequence, but its shape is {tuple(table.shape)}"
        )
    found = []
    for row, length in zip(table, lengths, strict=True):
        used = row[: -(-length // size)].long()
        found.append(blocks[used].transpose(0, 1).flatten(1, 2)[:, :length])
    return found


def joined(parts: list[Tensor], rows: int, layout: str) -> Tensor:
    """Sequences [N,S,D] in one tensor of `rows` (of all tokens, in TND and NTD); what they do not fill is zero."""
    if layout in ("TND", "NTD"):
        packed = torch.cat([part.transpose(0, 1) for part in parts])
        packed = torch.nn.functional.pad(packed, (0, 0, 0, 0, 0, rows - packed.shape[0]))
        return packed if layout == "TND" else packed.transpose(0, 1)
    out = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, rows - part.shape[1])) for part in parts])
    if layout == "BSH":
        return out.transpose(1, 2).flatten(2)
    return {"BNSD": out, "BSND": out.transpose(1, 2), "NBSD": out.transpose(0, 1)}[layout]


def wider(tensors: Sequence[Tensor], more: Sequence[Tensor]) -> list[Tensor]:
    """Each sequence with further columns."""
    return [torch.cat(pair, -1) for pair in zip(tensors, more, strict=True)]
