"""Whether the vLLM engine of a job is built with `enable_sleep_mode`, as upstream decides it.

    revision               mode    what the engine is given
    796871d7               both    free_cache_engine; engine_kwargs are not read (async), or a duplicate (sync)
    v0.6.1                 sync    free_cache_engine; in engine_kwargs it would be a duplicate
    v0.6.1                 async   True, unless engine_kwargs say otherwise
    ccd7d934 and later     async   enable_sleep_mode, which is True if it is not set; engine_kwargs win
    ccd7d934, v0.7.0       sync    what a recipe's own engine decides; r1_ascend's says False

Which row it is, upstream's own classes tell, not its version: `RolloutConfig` is missing at 796871d7, and has a field
`enable_sleep_mode` from ccd7d934 on.
"""

from __future__ import annotations

import dataclasses
import importlib

from ..configuration import Section

__all__ = ["remedy"]

_ROLLOUT = "actor_rollout_ref.rollout"
_KEEP_CACHE = f"{_ROLLOUT}.free_cache_engine=False"


def remedy(engine: Section) -> str:
    """Return the overrides with which the vLLM engine is built without sleep mode; empty if it is built so already.

    It is empty as well for an engine that is not upstream's own, of which nothing is known.
    """
    name, mode = "enable_sleep_mode", engine.get("mode", "sync")
    fields = _fields()
    if fields is None or (mode == "sync" and _is_upstreams("vllm", mode)):
        return _KEEP_CACHE if engine.get("free_cache_engine", False) else ""
    if mode == "sync":
        return ""
    asked = ((engine.get("engine_kwargs") or {}).get("vllm") or {}).get(name)
    if name in fields:
        asked = engine.get(name, True) if asked is None else asked
        return f"{_KEEP_CACHE} +{_ROLLOUT}.{name}=False" if asked else ""
    return f"{_KEEP_CACHE} +{_ROLLOUT}.engine_kwargs.vllm.{name}=False" if asked is None or asked else ""


def _fields() -> frozenset[str] | None:
    """Return the names of the fields of upstream's RolloutConfig, or None if upstream has no such class."""
    try:
        config = importlib.import_module("verl.workers.config")
    except ImportError:
        return None
    rollout = getattr(config, "RolloutConfig", None)
    return None if rollout is None else frozenset(field.name for field in dataclasses.fields(rollout))


def _is_upstreams(name: str, mode: str) -> bool:
    """Whether the engine of this name and mode is upstream's own. A recipe may have registered another."""
    base = importlib.import_module("verl.workers.rollout.base")
    return str(base._ROLLOUT_REGISTRY.get((name, mode), "")).startswith("verl.")
