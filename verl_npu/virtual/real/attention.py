"""Fused attention and its gradient, in all versions of the operator."""

from __future__ import annotations

from typing import TypeGuard

import torch

from .. import operators
from .gradient import vjp

__all__ = ["attention", "attention_grad", "is_tensor"]

_RENAMED = {"pre_tokens": "pre_tockens", "next_tokens": "next_tockens", "scale_value": "scale"}
_ATTENTION = (
    "pse",
    "padding_mask",
    "atten_mask",
    "scale",
    "keep_prob",
    "pre_tockens",
    "next_tockens",
    "prefix",
    "actual_seq_qlen",
    "actual_seq_kvlen",
    "sparse_mode",
    "sink",
)


def _attention_options(options: dict[str, object]) -> dict[str, object]:
    """What the reference is told, of what any of the versions of the operator is."""
    renamed = {_RENAMED.get(name, name): value for name, value in options.items()}
    for name in ("query_rope", "key_rope"):
        if renamed.get(name) is not None:
            raise NotImplementedError(f"npu_fusion_attention: {name} is not implemented by the virtual Ascend")
    lengths = {name: value.tolist() for name, value in renamed.items() if name in _LENGTHS and is_tensor(value)}
    return {name: value for name, value in (renamed | lengths).items() if name in _ATTENTION}


_LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> tuple[object, ...]:
    with torch.no_grad():
        chosen = _attention_options(options)
        return operators.npu_fusion_attention(query, key, value, head_num, input_layout, **chosen)[:4]  # type: ignore[arg-type]


def attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    **options: object,
) -> tuple[object, ...]:
    chosen = _attention_options(options)

    pse = chosen.pop("pse", None)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        return operators.npu_fusion_attention(q, k, v, head_num, input_layout, pse=shift, **chosen)[0]  # type: ignore[arg-type]

    # The gradient of the shift comes fourth, where there is one.
    return tuple(vjp(attend, [query, key, value, *([pse] if is_tensor(pse) else [])], [dy]))
