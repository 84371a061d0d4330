"""The padding helpers of `flash_attn.bert_padding`, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import RearrangeError

if TYPE_CHECKING:
    from torch import Tensor


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Select rows: x [tokens, ...], indices [selected] -> [selected, ...]. Differentiable in `x`."""
    return x.index_select(0, indices.reshape(-1))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Take the tokens that `attention_mask` keeps out of a padded batch.

    hidden_states [batch, seqlen, ...], attention_mask and unused_mask [batch, seqlen], 1 = kept ->
    (tokens [total, ...], indices [total] into batch*seqlen, cu_seqlens int32 [batch + 1], max_seqlen, seqlens used
    int32 [batch]). The same as flash_attn.bert_padding.unpad_input of flash-attn 2.7. The host waits for the device
    once, because the number of kept tokens decides a shape.
    """
    import torch

    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = all_masks.sum(dim=-1, dtype=torch.int32)
    used_seqlens = seqlens if unused_mask is None else attention_mask.sum(dim=-1, dtype=torch.int32)
    lengths = seqlens.tolist()
    indices = kept_indices(all_masks, sum(lengths))
    cu_seqlens = torch.nn.functional.pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
    tokens = hidden_states.flatten(0, 1).index_select(0, indices)
    return tokens, indices, cu_seqlens, max(lengths, default=0), used_seqlens


def kept_indices(mask: Tensor, total: int) -> Tensor:
    """Return the positions of the `total` tokens that `mask` [batch, seqlen] keeps: int64 [total] into batch*seqlen.

    The same as nonzero, for which the host would wait until the device had computed `total`.
    """
    import torch

    kept = mask.flatten().bool()
    places = torch.arange(kept.numel(), device=mask.device)
    # All dropped tokens go to one slot after the last, which is cut off.
    slots = torch.where(kept, torch.cumsum(kept, dim=0) - 1, total)
    return places.new_zeros(total + 1).scatter_(0, slots, places)[:total]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put tokens back into a padded batch: [total, ...], indices [total] -> [batch, seqlen, ...], zero elsewhere.

    The inverse of `unpad_input`; differentiable in `hidden_states`.
    """
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    padded = padded.index_copy(0, indices, hidden_states)
    return padded.unflatten(0, (batch, seqlen))


def rearrange(tensor: Tensor, pattern: str, **axes: int) -> Tensor:
    """`einops.rearrange` for the two patterns that upstream uses. Raises RearrangeError for any other."""
    words = " ".join(pattern.split())
    if not axes and words == "b s ... -> (b s) ...":
        return tensor.flatten(0, 1)
    if not axes and words == "c b s ... -> (b s) c ...":
        return tensor.flatten(1, 2).transpose(0, 1)
    raise RearrangeError(
        subject="verl-npu's rearrange, which replaces that of einops for upstream",
        expected="one of the two patterns that upstream uses",
        found=repr(pattern) + (f" with {axes}" if axes else ""),
        fix="install einops and call einops.rearrange itself",
    )
