"""What one worker asks of MindSpeed, and what MindSpeed gets for it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from .contract import Contract
from .unexpanded import Unexpanded

__all__ = ["OVERRIDE", "SECTION_KEYS", "STRAY_GROUPS", "Engine", "Request", "effective", "not_judged"]

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
    "vanilla_mbridge",
)
STRAY_GROUPS = ("override_transformer_config", "llm_kwargs")
"""Groups of overrides that are written into the section of MindSpeed-LLM's engine, which reads neither."""


class Engine(enum.Enum):
    """Which of upstream's engines passes the overrides to MindSpeed, by the section that they stand in."""

    MEGATRON = "megatron"
    MINDSPEED_LLM = "mindspeed"
    """`model_engine=mindspeed` at v0.8.0 and v0.9: the overrides are `mcore_kwargs`, MindSpeed-LLM passes them on, and
    Megatron's own arguments, which are checked by each feature's validate_args, are initialised from them."""

    @property
    def overrides(self) -> str:
        """The key of the overrides in the section."""
        return "override_transformer_config" if self is Engine.MEGATRON else "mcore_kwargs"


@dataclass(frozen=True, slots=True)
class Request:
    """What one worker asks of MindSpeed: its own overrides, and the section of its engine that they stand in."""

    worker: str
    overrides: Mapping[str, object]
    section: Mapping[str, object]
    engine: Engine = Engine.MEGATRON
    forward: bool = True
    """Whether it is known to compute with the model; upstream's converter of checkpoints does not."""


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


def not_judged(request: Request, contract: Contract) -> dict[str, Unexpanded]:
    """Return what cannot be judged, by the names of the settings: values that are yet to be computed, and arguments of
    MindSpeed-LLM's and Megatron's command line, which are not recorded."""
    section = {f"{request.engine.value}.{key}": value for key, value in request.section.items()}
    found = {key: value for key, value in {**request.overrides, **section}.items() if isinstance(value, Unexpanded)}
    if request.engine is Engine.MINDSPEED_LLM:
        kind = "may be an argument of MindSpeed-LLM or of Megatron's own, which are not recorded"
        foreign = {key: value for key, value in request.overrides.items() if not contract.knows(key)}
        found |= {key: Unexpanded(str(value), kind) for key, value in foreign.items() if key not in found}
    return found
