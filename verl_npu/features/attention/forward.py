"""transformers' call of flash attention: lengths from the host, and no setting that the NPU's path ignores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...registry.source.probe import Never
from .feature import NPU_MODULE, UTILS, attention
from .lengths import host_copy, packing, unpadding

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AttentionSettingError"]

_LINK = "none: torch_npu's operator takes its lengths as Python numbers"
_OUTSIDE = "transformers does it so in every version up to 5.10"


class AttentionSettingError(RuntimeError):
    """The model asks for something that the NPU's flash attention does not do."""


@attention.wrap(
    f"{UTILS}:_get_unpad_data",
    why="the lengths and the indices of a padded batch are fetched from the device in every layer, waiting each time",
    how="fetched once for each mask, in one transfer; the lengths stay on the host, where they are used",
    link=_LINK,
    retired_by=Never(_OUTSIDE),
)
def unpadded_once(original: Callable[..., Any], attention_mask: Tensor) -> Any:
    """attention_mask [batch, seqlen] -> (indices [total], cu_seqlens int32 [batch + 1] on the host, longest)."""
    if attention_mask.device.type != "npu":
        return original(attention_mask)
    return unpadding(attention_mask)


@attention.wrap(
    f"{NPU_MODULE}:npu_flash_attn_varlen_func",
    why="cu_seqlens is fetched from the device twice in every layer, waiting each time",
    how="the function gets a copy on the host, made once for each cu_seqlens",
    link=_LINK,
    retired_by=Never(_OUTSIDE),
)
def lengths_from_host(
    original: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Attention of packed sequences: q [tokens, heads, width], cu_seqlens [sequences + 1] -> as q."""
    return original(q, k, v, host_copy(cu_seqlens_q), host_copy(cu_seqlens_k), *args, **kwargs)


@attention.wrap(
    f"{UTILS}:_flash_attention_forward",
    why="whether sequences are packed, and where, is asked of the device in every layer; and the NPU's path drops a "
    "sliding window and a soft cap in silence",
    how="position ids are fetched once and what they say handed on as lengths; a setting that would be dropped is an "
    "error that names it, unless no sequence is long enough for it to matter",
    link=_LINK,
    retired_by=Never(_OUTSIDE),
)
def packed_once(
    original: Callable[..., Any],
    query_states: Tensor,
    key_states: Tensor,
    value_states: Tensor,
    attention_mask: Tensor | None,
    query_length: int,
    is_causal: bool,
    dropout: float = 0.0,
    position_ids: Tensor | None = None,
    softmax_scale: float | None = None,
    sliding_window: int | None = None,
    use_top_left_mask: bool = False,
    softcap: float | None = None,
    **kwargs: Any,
) -> Any:
    """Flash attention of query_states [batch, seqlen, heads, width], padded by a mask, packed by positions, or dense.

    Raises AttentionSettingError where the model's setting would be ignored.
    """
    if query_states.device.type == "npu":
        position_ids, longest = _lengths(attention_mask, position_ids, key_states, kwargs)
        _refuse(sliding_window, softcap, longest, kwargs)
        sliding_window = softcap = None
    return original(
        query_states,
        key_states,
        value_states,
        attention_mask,
        query_length,
        is_causal,
        dropout=dropout,
        position_ids=position_ids,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        use_top_left_mask=use_top_left_mask,
        softcap=softcap,
        **kwargs,
    )


def _lengths(
    attention_mask: Tensor | None, position_ids: Tensor | None, key_states: Tensor, kwargs: dict[str, Any]
) -> tuple[Tensor | None, Callable[[], int]]:
    """The position ids that are left to look at, and the length of the longest sequence; `kwargs` gets the lengths."""
    batch, width = key_states.shape[:2]
    if attention_mask is not None:
        # The mask decides alone, yet positions of one row would be fetched to be looked at.
        mask = attention_mask
        return None, lambda: unpadding(mask)[2] if mask.dim() == 2 else width
    if kwargs.get("max_length_k") is not None:
        return position_ids, lambda: int(kwargs["max_length_k"])
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape != (batch, width):
        return position_ids, lambda: width
    if batch > 1:
        return (None if _asks_by_row() else position_ids), lambda: width
    found = packing(position_ids)
    if found.increasing if not _asks_by_row() else found.consecutive:
        return None, lambda: width
    kwargs.update(
        cu_seq_lens_q=found.cu_seqlens,
        cu_seq_lens_k=found.cu_seqlens,
        max_length_q=found.longest,
        max_length_k=found.longest,
    )
    return position_ids, lambda: found.longest


def _asks_by_row() -> bool:
    # From 4.55 on: one row whose positions are not consecutive is packed. Before: one that has a position going down.
    return hasattr(sys.modules[UTILS], "_is_packed_sequence")


def _refuse(
    sliding_window: int | None, softcap: float | None, longest: Callable[[], int], rest: dict[str, Any]
) -> None:
    if softcap:
        raise _ignored("attn_logit_softcapping", softcap, "leave the soft cap out")
    if rest.get("s_aux") is not None:
        raise _ignored("attention sinks (s_aux)", "set", "use a model without sinks")
    if sliding_window is not None and longest() > sliding_window:
        raise _ignored(
            "sliding_window",
            sliding_window,
            f"and a sequence is {longest()} tokens long: set use_sliding_window=False if full attention is meant, or "
            "keep sequences within the window",
        )


def _ignored(setting: str, value: Any, advice: str) -> AttentionSettingError:
    return AttentionSettingError(
        f"flash attention on NPUs ignores {setting}, which the model's configuration has as {value}; {advice}; or set "
        "attn_implementation to eager (override: VERL_NPU_DISABLE=attention)"
    )
