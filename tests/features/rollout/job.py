"""The parts of a job's configuration that the rules of its rollout read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def job(
    name: str = "vllm",
    vllm: Any = None,
    role: Mapping[str, Any] | None = None,
    top: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Any:
    """Return a job whose engine has this name and these settings; `vllm` are its engine_kwargs."""
    omegaconf = pytest.importorskip("omegaconf")
    rollout = {"name": name, **({} if vllm is None else {"engine_kwargs": {"vllm": vllm}}), **engine}
    return omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, **(role or {})}, **(top or {})})
