"""Graphs of vLLM's engines: where they were compared with eager mode on virtual NPUs, an engine captures them, and
where they were not, it is refused before it starts.

Left alone it might end in one of its own processes, minutes later, or answer by what was never compared. Where the
weights lay when graphs were captured is noted for the proof of weights.
"""

from __future__ import annotations

import functools
from importlib import metadata
from types import ModuleType
from typing import Any

from verl_npu.errors import GraphError
from verl_npu.features.weight_sync.engines.captured import remember


def refuse_graphs(module: ModuleType) -> None:
    """Have vLLM ask `check_eager` when it chooses an engine's executor: its settings are final then, and no process of
    it runs yet."""
    executor = module.Executor
    original = executor.get_class

    @functools.wraps(original)
    def get_class(vllm_config: Any) -> object:
        check_eager(vllm_config)
        return original(vllm_config)

    executor.get_class = staticmethod(get_class)


def note_weights(module: ModuleType) -> None:
    """Have vllm-ascend note where its weights lay when it captured its graphs, for the proof of later ones."""
    runner = module.NPUModelRunner
    original = runner.capture_model

    @functools.wraps(original)
    def capture_model(self: Any, *args: object, **options: object) -> object:
        done = original(self, *args, **options)
        remember(self.model)
        return done

    runner.capture_model = capture_model


def check_eager(settings: Any) -> None:
    """Raise GraphError if an engine on NPUs with these settings of vLLM's would capture graphs that were not tried."""
    asked = _asked(settings) if settings.device_config.device_type == "npu" else ""
    if asked:
        raise GraphError(
            subject="an engine of vLLM on virtual NPUs (VIRTUAL_ASCEND is set)",
            expected=f"one without graphs, or {_offered()}: no others were compared with eager mode there",
            found=asked,
            fix="set enforce_eager=True (in verl actor_rollout_ref.rollout.enforce_eager=True)",
        )


def are_tried() -> bool:
    """Whether the engines of the installed vllm-ascend may capture graphs, in one of the modes that were compared."""
    return _release() in TRIED


TRIED = {
    "0.11.0": ("PIECEWISE", "FULL_DECODE_ONLY"),
    "0.13.0": ("PIECEWISE", "FULL_DECODE_ONLY"),
    "0.23.0": ("PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
}
"""The releases of vllm-ascend whose engines answer by graphs as they do without, and in which of vLLM's modes."""


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
    return f"enforce_eager=False, and so cudagraph_mode {mode.name}, with vllm-ascend {_release()}"


def _release() -> str:
    try:
        return metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        return "from nowhere that pip knows"
