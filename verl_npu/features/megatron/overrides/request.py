"""What one worker asks of MindSpeed, and what MindSpeed gets for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .unexpanded import Unexpanded

__all__ = ["OVERRIDE", "SECTION_KEYS", "Request", "effective", "not_judged"]

OVERRIDE = "VERL_NPU_DISABLE=megatron"
"""What a user sets to leave MindSpeed as it is."""
# The settings of a worker's `megatron` section that the rules read.
SECTION_KEYS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_mbridge",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What one worker asks of MindSpeed: its own overrides, and the `megatron` section that they stand in."""

    worker: str
    overrides: Mapping[str, object]
    section: Mapping[str, object]


def effective(request: Request) -> dict[str, object]:
    """Return the overrides together with those that verl's and MindSpeed's documents demand beside them.

    Flash attention is on unless the batch-invariant one replaces it. The size of context parallelism, and what mc2 and
    the swapped optimizer read from MindSpeed's arguments, are copied from the section.
    """
    settings = dict(request.overrides)
    section = {key: value for key, value in request.section.items() if value is not None}
    settings.setdefault("use_flash_attn", _negated(settings.get("use_flash_attn_npu_batch_invariant")))
    size = section.get("context_parallel_size", 1)
    if isinstance(size, Unexpanded) or (isinstance(size, int) and size > 1):
        settings.setdefault("context_parallel_size", size)
    wanted: tuple[str, ...] = ()
    if settings.get("use_ascend_mc2"):
        wanted += ("sequence_parallel", "tensor_model_parallel_size")
    if settings.get("swap_optimizer"):
        wanted += ("use_distributed_optimizer",)
    for key in wanted:
        if key in section:
            settings.setdefault(key, section[key])
    return settings


def _negated(value: object) -> object:
    return Unexpanded(f"not {value}", value.kind) if isinstance(value, Unexpanded) else not value


def not_judged(request: Request) -> dict[str, Unexpanded]:
    """Return the values that are yet to be computed, by the names of their settings."""
    named = {**request.overrides, **{f"megatron.{key}": value for key, value in request.section.items()}}
    return {key: value for key, value in named.items() if isinstance(value, Unexpanded)}
