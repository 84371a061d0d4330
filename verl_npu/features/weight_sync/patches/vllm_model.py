"""Patches of verl's code that updates a vLLM model in its own process.

The patches prepare the model for new weights. With VERL_NPU_WEIGHT_SYNC_CHECK=engine, they also compare the model's
weights with the sent weights after each sync.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from .... import reporting
from ....registry.source.probe import Defines, Never
from .. import weight_sync

if TYPE_CHECKING:
    import torch

    from ..engines.proof import Proof
    from ..engines.replayed import Runner
    from ..transport.tensors import Weight
    from .workers import Rollout

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_SPMD = f"{_ROLLOUT}.vllm_rollout_spmd"
_MANAGERS = "verl.workers.sharding_manager"
_PROOFS = "_verl_npu_proofs"
_LOAD = "load_weights"
Update = Callable[..., Awaitable[object]]
Implementation = TypeVar("Implementation", bound=Callable[..., object])


def _proving(target: str, held: str, name: str = "") -> Callable[[Implementation], Implementation]:
    """Return a decorator that wraps an upstream method that updates an engine. `held` is the name of the attribute
    that holds the engine."""
    return weight_sync.wrap(
        target,
        uses=(f"{target.rpartition('.')[0]}.{held}",),
        why="If generated text looks wrong, nothing shows whether the engine computes with the weights that it "
        "received.",
        how="With VERL_NPU_WEIGHT_SYNC_CHECK=engine, we compare the engine's weights after a sync with the received "
        "weights, bit for bit, at any tensor and expert parallelism.",
        link="none: nobody seems to have asked for it",
        retired_by=Never("this is verl-npu's own check, for users who doubt the engine's weights"),
        requires=Defines(target),
        name=name,
    )


@_proving(
    f"{_ROLLOUT}.vllm_rollout:vLLMAsyncRollout.update_weights", "inference_engine", name="prove_colocated_engine"
)
@_proving(f"{_SPMD}:vLLMAsyncRollout.update_weights", "inference_engine", name="prove_earlier_colocated_engine")
@_proving(f"{_SPMD}:vLLMRollout.update_weights", "inference_engine", name="prove_colocated_llm")
async def prove_colocated_engine(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout, which may be vLLM's `LLM` in its own process. Raises WeightSyncError if the
    engine's weights then differ from the sent weights."""
    # Imported here, because most processes of a job have no engine.
    from .checking import brings_adapter, proof_requested

    if brings_adapter(kwargs) or not proof_requested():
        return await original(rollout, weights, *args, **kwargs)
    from ..engines.proof import Proof
    from ..engines.vllm import captures_graphs, runner_in

    runner = runner_in(rollout.inference_engine)
    model = runner.model
    proof, names = Proof(model, captures_graphs(runner)), list[str]()
    done = await original(rollout, _noted(weights, proof, names), *args, **kwargs)
    _conclude(runner, proof, len(names))
    return done


class ShardingManager(Protocol):
    """The object that passes a trainer's weights to the engine on the same NPUs, in the August 2025 revision of
    verl."""

    model_runner: Runner


@_proving(f"{_MANAGERS}.fsdp_vllm:FSDPVLLMShardingManager.update_params", "model_runner")
def prove_engine_beside_fsdp(
    original: Callable[..., object],
    manager: ShardingManager,
    updated_params: Mapping[str, torch.Tensor],
    peft_config: object = None,
) -> object:
    """Sync the weights of an FSDP trainer. Raises WeightSyncError if the engine's weights then differ from the
    trainer's weights."""
    if peft_config is not None:
        return original(manager, updated_params, peft_config=peft_config)
    return _proven_on_load(manager, lambda: original(manager, updated_params))


@_proving(f"{_MANAGERS}.megatron_vllm:MegatronVLLMShardingManager.__enter__", "model_runner")
def prove_engine_beside_megatron(original: Callable[..., object], manager: ShardingManager) -> object:
    """Sync the weights of a Megatron trainer. Raises WeightSyncError if the engine's weights then differ from the
    trainer's weights."""
    return _proven_on_load(manager, lambda: original(manager))


def _proven_on_load(manager: ShardingManager, hand_over: Callable[[], object]) -> object:
    from .checking import proof_requested

    if not proof_requested():
        return hand_over()
    from ..engines.processing import refresh_copies_on_load
    from ..engines.proof import Proof
    from ..engines.vllm import captures_graphs

    model = manager.model_runner.model
    # This replaces the loader permanently, so it must come before the temporary replacement below.
    refresh_copies_on_load(model)
    held, upstreams = vars(model).get(_LOAD), model.load_weights
    loads: list[tuple[Proof, list[str]]] = []

    def load_weights(weights: Iterable[Weight], *args: object, **kwargs: object) -> object:
        # Not earlier: the engine may have slept until now.
        proof = Proof(model, captures_graphs(manager.model_runner))
        loads.append((proof, []))
        return upstreams(_noted(weights, *loads[-1]), *args, **kwargs)

    model.load_weights = load_weights
    try:
        done = hand_over()
    finally:
        del model.load_weights
        if held is not None:
            model.load_weights = held
    for proof, names in loads:
        _conclude(manager.model_runner, proof, len(names))
    return done


def _noted(weights: Iterable[Weight], proof: Proof, names: list[str]) -> Iterator[Weight]:
    """Yield the weights. Each weight is recorded for the proof before it is loaded."""
    for name, tensor in weights:
        proof.expect(name, tensor)
        names.append(name)
        yield name, tensor


def _conclude(runner: Runner, proof: Proof, count: int) -> None:
    from ..engines.vllm import watch_graphs

    verdict = proof.conclude()
    verdict.require()
    watch_graphs(runner)
    model = runner.model
    number = getattr(model, _PROOFS, 0) + 1
    setattr(model, _PROOFS, number)
    reporting.report(
        f"weight sync {number} of the engine in this process (pid {os.getpid()}): {count} tensors, {verdict}"
    )


_WORKERS = "verl.workers.rollout.vllm_rollout.utils"
_LOADER = "verl.utils.vllm.patch:patch_vllm_moe_model_weight_loader"


# At all pins, every sync into a vLLM model, by verl-npu or upstream, calls this target first.
@weight_sync.wrap(
    _LOADER,
    may_use=(f"{_WORKERS}:vLLMColocateWorkerExtension.update_weights_from_ipc",),
    why="vllm-ascend keeps copies of MLA's kv_b_proj, which become stale in a sync, and cannot tell whether a square "
    "expert weight is transposed. The model then silently generates with wrong weights.",
    how="We refresh the copies in place whenever kv_b_proj is loaded, and refuse transposed square experts before "
    "anything is loaded.",
    link="none: nobody seems to have reported it; verl's recipe r1_ascend refreshes the copies itself",
    retired_by=Never("vllm-ascend causes the problem, and verl's source does not show the installed version"),
    requires=Defines(_LOADER),
)
def prepare_vllm_model_for_new_weights(
    original: Callable[[torch.nn.Module], object], model: torch.nn.Module
) -> object:
    """Prepare a vLLM model for a sync. Raises WeightSyncError if the sync would corrupt the model's weights."""
    from ..engines.processing import refresh_copies_on_load, refuse_disposed_projections, refuse_square_experts

    refuse_square_experts(model, laid_out_before_load=_processes_after_each_sync())
    refuse_disposed_projections(model)
    refresh_copies_on_load(model)
    return original(model)


def _processes_after_each_sync() -> bool:
    """Return whether this verl version processes the weights after each sync. If it does, the layout of experts is
    restored before a sync."""
    extension = getattr(sys.modules.get(_WORKERS), "vLLMColocateWorkerExtension", None)
    return hasattr(extension, "update_weights_from_ipc")
