"""Flash attention through transformers' NPU path: the padding helpers that upstream expects there.

`flash_attn` does not exist on Ascend and is never faked: a dummy in `sys.modules` breaks the checks of transformers
and vLLM. What upstream's NPU branches import from transformers is put where they look for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry.patch import Feature
from ..registry.probe import AnyOf, Mentions

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["attention"]

attention = Feature("attention", "flash attention and its padding helpers, through transformers' NPU path")

_NPU_MODULE = "transformers.integrations.npu_flash_attention"
_WHY = (
    "transformers removed the helper from its NPU module in 4.55.2, and upstream's NPU branches import it from there"
)
_HOW = "the same function in plain torch, added to that module"
_LINK = "https://github.com/volcengine/verl/issues/3561"
# At 796871d7 the workers import all four; at v0.6.1 one module still imports two of them.
_WORKERS_IMPORT = Mentions("verl.workers.actor.dp_actor", _NPU_MODULE)
_ANYTHING_IMPORTS = AnyOf(_WORKERS_IMPORT, Mentions("verl.workers.roles.utils.padding", _NPU_MODULE))


@attention.add(f"{_NPU_MODULE}:index_first_axis", why=_WHY, how=_HOW, link=_LINK, requires=_WORKERS_IMPORT)
def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Select rows: x [tokens, ...], indices [selected] -> [selected, ...]. Differentiable in `x`."""
    return x.index_select(0, indices.reshape(-1))


@attention.add(f"{_NPU_MODULE}:unpad_input", why=_WHY, how=_HOW, link=_LINK, requires=_ANYTHING_IMPORTS)
def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Take the tokens that `attention_mask` keeps out of a padded batch.

    hidden_states [batch, seqlen, ...], attention_mask and unused_mask [batch, seqlen], 1 = kept ->
    (tokens [total, ...], indices [total] into batch*seqlen, cu_seqlens int32 [batch + 1], max_seqlen, seqlens used
    int32 [batch]). As flash_attn.bert_padding.unpad_input of flash-attn 2.7.
    """
    import torch

    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = all_masks.sum(dim=-1, dtype=torch.int32)
    used_seqlens = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(all_masks.flatten(), as_tuple=False).flatten()
    cu_seqlens = torch.nn.functional.pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
    tokens = hidden_states.flatten(0, 1).index_select(0, indices)
    return tokens, indices, cu_seqlens, int(seqlens.max().item()), used_seqlens


@attention.add(f"{_NPU_MODULE}:pad_input", why=_WHY, how=_HOW, link=_LINK, requires=_ANYTHING_IMPORTS)
def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put tokens back into a padded batch: [total, ...], indices [total] -> [batch, seqlen, ...], zero elsewhere.

    The inverse of `unpad_input`; differentiable in `hidden_states`.
    """
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    padded = padded.index_copy(0, indices, hidden_states)
    return padded.unflatten(0, (batch, seqlen))


@attention.add(f"{_NPU_MODULE}:rearrange", why=_WHY, how=_HOW, link=_LINK, requires=_WORKERS_IMPORT)
def rearrange(tensor: Tensor, pattern: str, **axes: int) -> Tensor:
    """`einops.rearrange` for the patterns that upstream uses; raises NotImplementedError for any other."""
    words = " ".join(pattern.split())
    if not axes and words == "b s ... -> (b s) ...":
        return tensor.flatten(0, 1)
    if not axes and words == "c b s ... -> (b s) c ...":
        return tensor.flatten(1, 2).transpose(0, 1)
    raise NotImplementedError(
        f"rearrange({pattern!r}): verl-npu stands in for einops in upstream's two patterns only; "
        "call einops.rearrange itself (pip install einops)"
    )
