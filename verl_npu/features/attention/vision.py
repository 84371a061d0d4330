"""Packed sequences of Qwen2-VL and Qwen2.5-VL, which upstream hands to flash attention itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

from ...registry.source.probe import Mentions
from .feature import NPU_MODULE, UTILS, attention

__all__ = ["use_npu_attention_in_packed_qwen2_vl"]

Attention: TypeAlias = "Callable[..., object]"

_MODULE = "verl.models.transformers.qwen2_vl"


class NpuModule(Protocol):
    """transformers' module of flash attention on NPUs."""

    npu_flash_attn_varlen_func: Attention


@attention.set(
    f"{_MODULE}:flash_attn_varlen_func",
    why="Upstream imports the function from a module of transformers that has lost it in 4.53, and goes on with None: "
    "packed sequences end the job with `TypeError: 'NoneType' object is not callable`.",
    how="None becomes transformers' own function for NPUs, which is the one that was there before 4.53.",
    link="https://github.com/volcengine/verl/pull/3532",
    retired_by=Mentions(_MODULE, NPU_MODULE),
    requires=Mentions(_MODULE, UTILS),
)
def use_npu_attention_in_packed_qwen2_vl(function: Attention | None) -> Attention:
    """Return the function for packed sequences: upstream's, if it found one."""
    if function is not None:
        return function
    return cast(NpuModule, importlib.import_module(NPU_MODULE)).npu_flash_attn_varlen_func
