"""The key of additional_config with which vllm-ascend lays weights out in a format that a sync garbles."""

from __future__ import annotations

from ...ascend.variables import NZ, NZ_KEY
from ...reporting import warn
from ..configuration import Section

__all__ = ["warn_of_weight_format"]

_ADDITIONAL = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"


def warn_of_weight_format(config: Section) -> None:
    """Say that the job's vLLM engine is told to hold weights in the format FRACTAL_NZ.

    Only the worker knows its vllm-ascend: from 0.23 on the engine ends with an error on waking, and earlier releases
    do not read the key.
    """
    engine = config.actor_rollout_ref.rollout
    asked = ((engine.get("engine_kwargs") or {}).get("vllm") or {}).get("additional_config")
    # A user may also give it as a text in JSON, of which nothing is read here.
    mode = asked.get(NZ_KEY) if asked is not None and hasattr(asked, "get") else None
    if engine.get("name") == "vllm" and mode:
        warn(
            f"{_ADDITIONAL}.{NZ_KEY}={mode}: from vllm-ascend 0.23 on this wins over {NZ.name}={NZ.value}, and the "
            f"engine refuses to wake up with it; leave it out: {NZ.reason}"
        )
