"""Whether vllm-ascend's switch for reinforcement learning, `rl_config`, is on in the engine that it was set for."""

from __future__ import annotations

import sys

from ....errors import EngineError

__all__ = ["refuse_lost_rl_mode"]


def refuse_lost_rl_mode(runner: object) -> None:
    """Raise EngineError if the engine of this runner was given `rl_config.enabled`, and vllm-ascend works without it.

    vllm-ascend keeps one configuration for a process, which may be another engine's. Releases that do not know the
    switch are left, as is a process without an engine.
    """
    configuration = getattr(sys.modules.get("vllm_ascend.ascend_config"), "get_ascend_config", None)
    given = getattr(getattr(runner, "vllm_config", None), "additional_config", None) or {}
    if configuration is None or not (given.get("rl_config") or {}).get("enabled"):
        return
    try:
        mode = getattr(configuration(), "rl_config", None)
    except RuntimeError:  # There is no engine in this process yet.
        return
    if mode is not None and not mode.enabled:
        raise EngineError(
            subject="additional_config.rl_config.enabled",
            expected="True in vllm-ascend's configuration, as the engine was given it",
            found=f"{mode.enabled!r}, which is another engine's of this process",
            fix="give every engine of this process the same additional_config, or set rl_config.enabled=False in it",
        )
