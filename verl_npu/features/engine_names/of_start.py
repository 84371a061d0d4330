"""The names of vllm-ascend that verl-npu looks up before an engine is started."""

from __future__ import annotations

from .name import NEVER, Form, Name

__all__ = ["START"]

_CONFIG = "vllm_ascend.ascend_config"
_VERSIONS = "features.rollout.engine_versions"
_RL = "features.rollout.rl_mode"
_LOST = "features.weight_sync.engines.rl_mode"
_NOT_REFUSED = "a vLLM that does not fit this vllm-ascend is not refused before the job starts"
_NO_MODE = "rl_config is not set, and VLLM_ASCEND_ENABLE_NZ alone decides"

START = (
    *(
        Name(
            f"the patches of vllm-ascend's {part}",
            (f"vllm_ascend.patch.{part}",),
            (f"{_VERSIONS}:vllm_ascend.patch.{part}",),
            _NOT_REFUSED,
            Form.MODULE,
            since="0.9.1",
        )
        for part in ("platform", "worker")
    ),
    Name(
        "NPUWorker",
        ("vllm_ascend.worker.worker:NPUWorker", "vllm_ascend.worker.worker_v1:NPUWorker"),
        (f"{_VERSIONS}:NPUWorker",),
        _NOT_REFUSED,
    ),
    Name(
        "vllm_version_is",
        ("vllm_ascend.utils:vllm_version_is",),
        (f"{_VERSIONS}:vllm_version_is",),
        _NOT_REFUSED,
        arguments=1,
        since="0.9.1",
    ),
    Name(
        "VLLM_VERSION",
        ("vllm_ascend.envs:VLLM_VERSION",),
        (f"{_VERSIONS}:VLLM_VERSION",),
        _NOT_REFUSED,
        Form.READ,
        since="0.9.1",
    ),
    Name(
        "RlConfig",
        (f"{_CONFIG}:RlConfig",),
        (f"{_RL}:RlConfig",),
        _NO_MODE,
        since=NEVER,
    ),
    Name(
        "rl_config of additional_config",
        (f"{_CONFIG}:rl_config",),
        (f"{_RL}:rl_config", f"{_LOST}:rl_config"),
        _NO_MODE,
        Form.READ,
        since=NEVER,
    ),
)
"""Releases are vllm-ascend's."""
