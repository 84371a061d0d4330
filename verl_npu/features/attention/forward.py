"""transformers' call of flash attention: it gets its lengths from the host, and no setting that NPUs ignore."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, SupportsInt, TypeVar, cast

from ...errors import AttentionSettingError
from ...registry.source.probe import Never
from .feature import NPU_MODULE, UTILS, attention
from .lengths import host_copy, packing, unpadding

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "compute_packing_once_and_check_settings",
    "compute_unpadding_once_per_mask",
    "pass_sequence_lengths_from_host",
]

_LINK = "none: torch_npu's operator takes its lengths as Python numbers"
_ALL_VERSIONS = "transformers does it so in every version up to 5.10"

Result = TypeVar("Result")


@attention.wrap(
    f"{UTILS}:_get_unpad_data",
    why="The lengths and indices of a padded batch are fetched from the NPU in every layer, and each time the host "
    "waits for the NPU.",
    how="They are fetched once for each mask, in one transfer. The lengths stay on the host, where they are used.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
)
def compute_unpadding_once_per_mask(
    original: Callable[[Tensor], Result], attention_mask: Tensor
) -> Result | tuple[Tensor, Tensor, int]:
    """attention_mask [batch, seqlen] -> (indices [total], cu_seqlens int32 [batch + 1] on the host, longest)."""
    if attention_mask.device.type != "npu":
        return original(attention_mask)
    return unpadding(attention_mask)


@attention.wrap(
    f"{NPU_MODULE}:npu_flash_attn_varlen_func",
    why="cu_seqlens is fetched from the NPU twice in every layer, and each time the host waits for the NPU.",
    how="The function gets a copy on the host, which is made once for each cu_seqlens.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
)
def pass_sequence_lengths_from_host(
    original: Callable[..., Result],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *args: object,
    **kwargs: object,
) -> Result:
    """Attention of packed sequences: q [tokens, heads, width], cu_seqlens [sequences + 1] -> the shape of q."""
    return original(q, k, v, host_copy(cu_seqlens_q), host_copy(cu_seqlens_k), *args, **kwargs)


@attention.wrap(
    f"{UTILS}:_flash_attention_forward",
    why="Position ids are fetched from the NPU in every layer to see whether sequences are packed. A sliding window "
    "and a soft cap are ignored on NPUs without an error.",
    how="Position ids are fetched once, and lengths passed on. A setting that NPUs ignore is an error, except for a "
    "sliding window that no sequence exceeds.",
    link=_LINK,
    retired_by=Never(_ALL_VERSIONS),
)
def compute_packing_once_and_check_settings(
    original: Callable[..., Result],
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
    **kwargs: object,
) -> Result:
    """Flash attention of query_states [batch, seqlen, heads, width], padded by a mask, packed by positions, or dense.

    Raises AttentionSettingError if the NPU would ignore a setting of the model.
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
    attention_mask: Tensor | None, position_ids: Tensor | None, key_states: Tensor, kwargs: dict[str, object]
) -> tuple[Tensor | None, Callable[[], int]]:
    """Return the position ids that transformers must still see, and a function for the length of the longest sequence.

    If sequences are packed, their lengths are added to `kwargs`.
    """
    batch, width = key_states.shape[:2]
    if attention_mask is not None:
        # transformers goes by the mask alone, yet it would fetch the positions of a batch of one row.
        mask = attention_mask
        return None, lambda: unpadding(mask)[2] if mask.dim() == 2 else width
    given = kwargs.get("max_length_k")
    if given is not None:
        return position_ids, lambda: int(cast(SupportsInt, given))
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape != (batch, width):
        return position_ids, lambda: width
    if batch > 1:
        return (None if _packs_single_rows_only() else position_ids), lambda: width
    packed = packing(position_ids)
    if packed.consecutive if _packs_single_rows_only() else packed.increasing:
        return None, lambda: width
    kwargs.update(
        cu_seq_lens_q=packed.cu_seqlens,
        cu_seq_lens_k=packed.cu_seqlens,
        max_length_q=packed.longest,
        max_length_k=packed.longest,
    )
    return position_ids, lambda: packed.longest


def _packs_single_rows_only() -> bool:
    # transformers from 4.55 on: a batch of one row is packed if its positions are not consecutive. Before that, any
    # batch is packed if a position is below the one before it.
    return hasattr(sys.modules[UTILS], "_is_packed_sequence")


def _refuse(
    sliding_window: int | None, softcap: float | None, longest: Callable[[], int], rest: dict[str, object]
) -> None:
    if softcap:
        raise _ignored(f"attn_logit_softcapping={softcap}", "leave the soft cap out")
    if rest.get("s_aux") is not None:
        raise _ignored("attention sinks (s_aux)", "use a model without sinks")
    if sliding_window is not None and longest() > sliding_window:
        raise _ignored(
            f"sliding_window={sliding_window}",
            "set use_sliding_window=False if full attention is meant, or keep sequences within the window",
            f", and a sequence is {longest()} tokens long",
        )


def _ignored(setting: str, fix: str, detail: str = "") -> AttentionSettingError:
    return AttentionSettingError(
        subject="flash attention on NPUs",
        expected="only settings of the model that it does not ignore",
        found=f"{setting}, which it ignores{detail}",
        fix=f"{fix}; or set attn_implementation to eager",
        override="VERL_NPU_DISABLE=attention",
    )
