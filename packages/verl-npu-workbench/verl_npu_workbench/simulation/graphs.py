"""Allows vLLM's graph modes whose results were compared with eager mode on virtual NPUs, and refuses other graph modes
at the start. Otherwise, an engine might fail minutes later in one of its own processes, or generate responses that
nobody has verified. In addition, the addresses of the weights are recorded when graphs are captured, for the proof of
weights."""

from __future__ import annotations

import functools
from importlib import metadata
from types import ModuleType
from typing import Any

from verl_npu.errors import JobSettingError
from verl_npu.features.weight_sync.engines.captured import remember


def refuse_graphs(module: ModuleType) -> None:
    """Make vLLM call `check_eager` when it selects an engine's executor. At this point, the engine's settings are
    final, and no engine process has started."""
    executor = module.Executor
    original = executor.get_class

    @functools.wraps(original)
    def get_class(vllm_config: Any) -> object:
        check_eager(vllm_config)
        return original(vllm_config)

    executor.get_class = staticmethod(get_class)


def note_weights(module: ModuleType) -> None:
    """Make vllm-ascend record the addresses of its weights when it captures graphs, so that later checks of the
    weights can use these addresses."""
    runner = module.NPUModelRunner
    original = runner.capture_model

    @functools.wraps(original)
    def capture_model(self: Any, *args: object, **options: object) -> object:
        done = original(self, *args, **options)
        remember(self.model)
        return done

    runner.capture_model = capture_model


def check_eager(settings: Any) -> None:
    """Raise JobSettingError if these vLLM settings would make an engine on NPUs capture graphs in an untested mode."""
    asked = _asked(settings) if settings.device_config.device_type == "npu" else ""
    if asked:
        raise JobSettingError(
            subject="a vLLM engine on virtual NPUs (VIRTUAL_ASCEND is set)",
            expected=f"no graphs, or {_offered()}. Other graph modes were never compared with eager mode",
            found=asked,
            fix="set enforce_eager=True (in verl, set actor_rollout_ref.rollout.enforce_eager=True; for vLLM's "
            "server, add --enforce-eager)",
        )


TRIED = {
    "0.11.0": ("PIECEWISE", "FULL_DECODE_ONLY"),
    "0.13.0": ("PIECEWISE", "FULL_DECODE_ONLY"),
    "0.23.0": ("PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
}
"""A mapping from each release of vllm-ascend to the vLLM graph modes whose responses are equal to eager mode's."""


def _offered() -> str:
    return ", or ".join(
        f"vllm-ascend {release} with cudagraph_mode {' or '.join(modes)}" for release, modes in TRIED.items()
    )


def _asked(settings: Any) -> str:
    torchair = (settings.additional_config or {}).get("torchair_graph_config", {})
    if torchair.get("enabled"):
        return "torchair_graph_config.enabled in additional_config"
    mode = settings.compilation_config.cudagraph_mode
    if not mode or mode.name == "NONE":
        return ""
    if mode.name in TRIED.get(_release(), ()):
        return ""
    return f"enforce_eager=False, which gives cudagraph_mode {mode.name}, with vllm-ascend {_release()}"


def _release() -> str:
    try:
        return metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        return "of an unknown release"
