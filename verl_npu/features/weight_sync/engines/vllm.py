"""A vLLM worker of this process as the taker of weights: its model is closed while it holds half of a sync."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ....ascend.variables import NZ, NZ_KEY
from ....errors import EngineError
from ....reporting import warn
from ..transport.tensors import Weight
from .proof import SHOWN, Proof
from .replayed import compare_next_replay, restore

if TYPE_CHECKING:
    import torch


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


_CLOSED = "_verl_npu_closed"
_RUN = "execute_model"
_FRACTAL_NZ = 29
"""torch_npu's number of the layout."""


class Worker(Protocol):
    """A vLLM worker; its runner runs the model by `execute_model`."""

    model_runner: Any


class VLLMEngine:
    """The model in a vLLM worker of this process, by what runs it there.

    Raises EngineError if weights that are written into it would be garbled.
    """

    def __init__(self, runner: Any) -> None:
        refuse_nz()
        refuse_lost_rl_mode(runner)
        tell_layouts(runner.model)
        self._runner = runner
        self._proof: Proof | None = None
        self._proven = False

    def load(self, weights: Sequence[Weight]) -> None:
        """Give the weights to the model's own loader. From now on its worker raises EngineError for each batch."""
        held = vars(self._runner)
        if _CLOSED not in held:
            # The model's forward would be too late: a graph that is replayed does not call it.
            held[_CLOSED] = held.get(_RUN)
            held[_RUN] = _refuse
        self._runner.model.load_weights(list(weights))

    def open(self) -> None:
        """Let the worker run batches again."""
        held = vars(self._runner)
        if _CLOSED in held:
            restore(self._runner, held.pop(_CLOSED))
        if self._proven:
            watch_graphs(self._runner)

    def expect(self, weights: Sequence[Weight]) -> None:
        """Take note of what is loaded next, for the proof."""
        if self._proof is None:
            self._proof = Proof(self._runner.model, captures_graphs(self._runner))
        for name, tensor in weights:
            self._proof.expect(name, tensor)

    def prove(self) -> str:
        """Compare what the model computes with with what was loaded, bit for bit, and say what that came to. The first
        batch by captured graphs is compared with eager mode when it comes.

        Raises EngineError if it is not the same.
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
    """Raise EngineError if vllm-ascend may hold weights in the format FRACTAL_NZ: a copy into them garbles them."""
    if "vllm_ascend" not in sys.modules:
        return
    value = os.environ.get(NZ.name)
    if value != NZ.value and _reads_variable():
        raise EngineError(
            subject=NZ.name,
            expected=f"{NZ.name}={NZ.value}",
            found="no value, which means 1" if value is None else repr(value),
            fix=f"set it in the environment of the job: {NZ.reason}",
        )
    mode = _nz_mode()
    if mode:
        raise EngineError(
            subject=f"additional_config.{NZ_KEY}",
            expected=f"{NZ_KEY}=0, or no such key",
            found=f"{mode!r}, which vllm-ascend takes instead of {NZ.name}={NZ.value}",
            fix=f"leave it out of the engine's additional_config: {NZ.reason}",
        )


def tell_layouts(model: torch.nn.Module) -> None:
    """Warn of parameters that lie in FRACTAL_NZ all the same: fused MC2, for one, casts experts to it by itself."""
    layout_of = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    if layout_of is None:
        return
    try:
        found = [name for name, held in model.named_parameters() if _is_nz(held, layout_of)]
    except NotImplementedError:  # Those of an older virtual Ascend have no layouts.
        return
    if found:
        shown = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        warn(
            f"{len(found)} parameters of the rollout engine are laid out in FRACTAL_NZ: {shown}. New weights that are "
            "copied into that layout may be garbled without an error. Leave enable_fused_mc2 and "
            "VLLM_ASCEND_ENABLE_FUSED_MC2 off, or see with VERL_NPU_WEIGHT_SYNC_CHECK=engine what the engine holds"
        )


def _is_nz(held: torch.Tensor, layout_of: Callable[[torch.Tensor], int]) -> bool:
    return held.device.type == "npu" and layout_of(held) == _FRACTAL_NZ


def _reads_variable() -> bool:
    """Whether vllm-ascend knows the variable. Those before 0.11.0rc1 do not, and lay no weights out like that."""
    variables = sys.modules.get("vllm_ascend.envs")
    return variables is None or hasattr(variables, NZ.name)


def _nz_mode() -> object:
    """Return the mode by vllm-ascend's own configuration; None if it has none in this process, or no such setting."""
    module = sys.modules.get("vllm_ascend.ascend_config")
    configuration = getattr(module, "get_ascend_config", None)
    if configuration is None:
        return None
    try:
        return getattr(configuration(), NZ_KEY, None)
    except RuntimeError:  # There is no engine in this process yet.
        return None


def captures_graphs(runner: object) -> bool:
    """Return whether the engine of this runner captures graphs, as far as its settings say."""
    settings = getattr(getattr(runner, "vllm_config", None), "compilation_config", None)
    mode = getattr(settings, "cudagraph_mode", None)
    return mode is not None and mode.name != "NONE"


def watch_graphs(runner: object) -> None:
    """After a weight sync: have the next batch by captured graphs compared with eager mode, if there are any."""
    if captures_graphs(runner):
        compare_next_replay(runner)


def runner_in(engine: Any) -> Any:
    """Return what runs the model of this process's vLLM worker: inside an LLM (up to 0.10), or of an async server."""
    holder = engine.llm_engine.model_executor.driver_worker if hasattr(engine, "llm_engine") else engine
    return holder.worker.model_runner


def _refuse(*batch: object, **options: object) -> None:
    raise EngineError(
        subject="rollout engine",
        expected="the weights of one whole sync",
        found="old and new weights mixed: the last weight sync did not come to its end",
        fix="see the error of that sync",
    )
