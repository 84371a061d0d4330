"""A receiver of weights: a vLLM worker in this process. The worker's model is closed while it holds only part of a
sync."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ....ascend.variables import NZ, NZ_KEY
from ....errors import WeightSyncError
from ....reporting import warn
from ..transport.tensors import Weight
from .proof import SHOWN, Proof
from .replayed import compare_next_replay, restore

if TYPE_CHECKING:
    import torch


def refuse_lost_rl_mode(runner: object) -> None:
    """Raise WeightSyncError if this runner's engine requests `rl_config.enabled`, but vllm-ascend runs without it.

    vllm-ascend keeps only one configuration for each process, and another engine may have set it. Do nothing if the
    vllm-ascend release has no such setting, or if the process has no engine.
    """
    configuration = getattr(sys.modules.get("vllm_ascend.ascend_config"), "get_ascend_config", None)
    given = getattr(getattr(runner, "vllm_config", None), "additional_config", None) or {}
    if configuration is None or not (given.get("rl_config") or {}).get("enabled"):
        return
    try:
        mode = getattr(configuration(), "rl_config", None)
    except RuntimeError:  # this process has no engine yet
        return
    if mode is not None and not mode.enabled:
        raise WeightSyncError(
            subject="additional_config.rl_config.enabled",
            found=f"this engine requests True, but another engine in this process has already set {mode.enabled!r} "
            "for vllm-ascend",
            fix="use the same additional_config for every engine in this process, or set rl_config.enabled=False for "
            "this engine",
        )


_CLOSED = "_verl_npu_closed"
_RUN = "execute_model"
_FRACTAL_NZ = 29
"""torch_npu's number for the FRACTAL_NZ layout."""


class Worker(Protocol):
    """A vLLM worker. Its model runner runs the model with `execute_model`."""

    model_runner: Any


class VLLMEngine:
    """The model of a vLLM worker in this process. The model is accessed through the worker's runner.

    The constructor raises WeightSyncError if loading new weights would corrupt the model.
    """

    def __init__(self, runner: Any) -> None:
        refuse_nz()
        refuse_lost_rl_mode(runner)
        warn_of_nz(runner.model)
        self._runner = runner
        self._proof: Proof | None = None
        self._proven = False

    def load(self, weights: Sequence[Weight]) -> None:
        """Pass the weights to the model's own loader. Until `open` is called, the worker raises WeightSyncError for
        each batch."""
        held = vars(self._runner)
        if _CLOSED not in held:
            # Closing the model's forward would not work, because a replayed graph does not call it.
            held[_CLOSED] = held.get(_RUN)
            held[_RUN] = _refuse
        self._runner.model.load_weights(list(weights))

    def open(self) -> None:
        """Allow the worker to resume running batches."""
        held = vars(self._runner)
        if _CLOSED in held:
            restore(self._runner, held.pop(_CLOSED))
        if self._proven:
            watch_graphs(self._runner)

    def expect(self, weights: Sequence[Weight]) -> None:
        """Record the weights that are about to be loaded, so that `prove` can check them."""
        if self._proof is None:
            self._proof = Proof(self._runner.model, captures_graphs(self._runner))
        for name, tensor in weights:
            self._proof.expect(name, tensor)

    def prove(self) -> str:
        """Compare the weights in the engine's model with the loaded weights, bit for bit. Return the result as a
        string.

        Afterwards, the output of the first batch that uses captured graphs is compared with the output of eager mode.
        Raises WeightSyncError if weights differ.
        """
        proof = self._proof or Proof(self._runner.model, captures_graphs(self._runner))
        self._proof = None
        verdict = proof.conclude()
        verdict.require()
        self._proven = True
        if _CLOSED not in vars(self._runner):
            watch_graphs(self._runner)
        return str(verdict)


def refuse_nz() -> None:
    """Raise WeightSyncError if vllm-ascend may store weights in the FRACTAL_NZ layout, because copying new weights
    into that layout would corrupt them."""
    if "vllm_ascend" not in sys.modules:
        return
    value = os.environ.get(NZ.name)
    if value != NZ.value and _reads_variable():
        raise WeightSyncError(
            subject=NZ.name,
            expected=f"{NZ.name}={NZ.value}",
            found=f"{NZ.name} not set, so the default of 1 applies" if value is None else f"{NZ.name}={value}",
            fix=f"set {NZ.name}={NZ.value} in the job's environment, because {NZ.reason}",
        )
    mode = _nz_mode()
    if mode:
        raise WeightSyncError(
            subject=f"additional_config.{NZ_KEY}",
            expected=f"{NZ_KEY}=0 or no {NZ_KEY}",
            found=f"{NZ_KEY}={mode!r}, which vllm-ascend uses instead of {NZ.name}={NZ.value}",
            fix=f"remove {NZ_KEY} from the engine's additional_config, because {NZ.reason}",
        )


def warn_of_nz(model: torch.nn.Module) -> None:
    """Warn about parameters that are in the FRACTAL_NZ layout although vllm-ascend's settings disable this layout. For
    example, fused MC2 casts expert weights to this layout."""
    layout_of = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    if layout_of is None:
        return
    try:
        found = [name for name, held in model.named_parameters() if _is_nz(held, layout_of)]
    except NotImplementedError:  # an older virtual Ascend has no layouts
        return
    if found:
        shown = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        warn(
            f"the rollout engine has parameters in the FRACTAL_NZ layout ({len(found)}): {shown}. Copying new weights "
            "into that layout may corrupt the weights without an error. Disable enable_fused_mc2 and "
            "VLLM_ASCEND_ENABLE_FUSED_MC2, or check the engine's weights with VERL_NPU_WEIGHT_SYNC_CHECK=engine"
        )


def _is_nz(held: torch.Tensor, layout_of: Callable[[torch.Tensor], int]) -> bool:
    return held.device.type == "npu" and layout_of(held) == _FRACTAL_NZ


def _reads_variable() -> bool:
    """Return whether vllm-ascend reads the environment variable. Releases before 0.11.0rc1 do not read it, and never
    use FRACTAL_NZ."""
    variables = sys.modules.get("vllm_ascend.envs")
    return variables is None or hasattr(variables, NZ.name)


def _nz_mode() -> object:
    """Return the mode in vllm-ascend's own configuration, or None if this process has no configuration or no such
    setting."""
    module = sys.modules.get("vllm_ascend.ascend_config")
    configuration = getattr(module, "get_ascend_config", None)
    if configuration is None:
        return None
    try:
        return getattr(configuration(), NZ_KEY, None)
    except RuntimeError:  # this process has no engine yet
        return None


def captures_graphs(runner: object) -> bool:
    """Return whether the settings of this runner's engine make it capture graphs."""
    settings = getattr(getattr(runner, "vllm_config", None), "compilation_config", None)
    mode = getattr(settings, "cudagraph_mode", None)
    return mode is not None and mode.name != "NONE"


def watch_graphs(runner: object) -> None:
    """If the engine captures graphs, take the next batch that uses graphs, compute it again in eager mode, and compare
    the two outputs."""
    if captures_graphs(runner):
        compare_next_replay(runner)


def runner_in(engine: Any) -> Any:
    """Return the model runner of this process's vLLM worker. `engine` is a vLLM `LLM` (up to vLLM 0.10) or an async
    server."""
    holder = engine.llm_engine.model_executor.driver_worker if hasattr(engine, "llm_engine") else engine
    return holder.worker.model_runner


def _refuse(*batch: object, **options: object) -> None:
    raise WeightSyncError(
        subject="rollout engine",
        found="the engine holds a mix of old and new weights, because the last weight sync did not finish",
        fix="find the error that interrupted that weight sync",
    )
