"""The key of additional_config with which vllm-ascend lays weights out in a format that a sync garbles."""

from __future__ import annotations

from ...ascend.variables import NZ, NZ_KEY
from ...errors import FleetError
from ..configuration import Section

__all__ = ["refuse_weight_format"]

_ADDITIONAL = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"


def refuse_weight_format(config: Section) -> None:
    """Raise FleetError if the job's vLLM engine is told to hold weights in the format FRACTAL_NZ."""
    engine = config.actor_rollout_ref.rollout
    asked = ((engine.get("engine_kwargs") or {}).get("vllm") or {}).get("additional_config")
    # A user may also give it as a text in JSON, of which nothing is read here.
    mode = asked.get(NZ_KEY) if asked is not None and hasattr(asked, "get") else None
    if engine.get("name") == "vllm" and mode:
        raise FleetError(
            subject=f"{_ADDITIONAL}.{NZ_KEY}={mode}",
            expected=f"{NZ_KEY}=0, or no such key",
            found=f"{mode!r}, which vllm-ascend takes instead of {NZ.name}={NZ.value}",
            fix=f"leave the key out: {NZ.reason}",
            override="VERL_NPU_DISABLE=rollout",
        )
