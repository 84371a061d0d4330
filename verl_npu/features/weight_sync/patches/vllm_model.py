"""Patches of what verl does with a vLLM model of its own process: it is prepared for new weights, and if
VERL_NPU_WEIGHT_SYNC_CHECK=engine it is compared with them after each sync.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .... import reporting
from ....registry.source.probe import Defines, Never
from ..engines.processing import refresh_copies_on_load, refuse_disposed_projections, refuse_square_experts
from ..engines.proof import Proof
from ..engines.vllm import runner_in
from ..feature import weight_sync
from ..settings import Check
from ..transport.tensors import Weight
from .checkpoint_engine import brings_adapter, requested
from .workers import Rollout

if TYPE_CHECKING:
    import torch

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_SPMD = f"{_ROLLOUT}.vllm_rollout_spmd"
_PROOFS = "_verl_npu_proofs"
Update = Callable[..., Awaitable[object]]


def _proving(target: str) -> Callable[[Update], Update]:
    """Wrap one of upstream's methods that update an engine."""
    return weight_sync.wrap(
        target,
        why="If generated text looks wrong, nothing shows whether the engine computes with the weights that it was "
        "given.",
        how="With VERL_NPU_WEIGHT_SYNC_CHECK=engine what it holds after a sync is compared with what it was given, "
        "bit for bit, at any tensor and expert parallelism.",
        link="none: nobody seems to have asked for it",
        retired_by=Never("a check of ours, for users who doubt what the engine holds"),
        requires=Defines(target),
    )


@_proving(f"{_ROLLOUT}.vllm_rollout:vLLMAsyncRollout.update_weights")
async def prove_colocated_engine(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout. Raises EngineError if it then does not compute with these weights."""
    return await _proven(original, rollout, weights, *args, **kwargs)


@_proving(f"{_SPMD}:vLLMAsyncRollout.update_weights")
async def prove_earlier_colocated_engine(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout, as of September 2025."""
    return await _proven(original, rollout, weights, *args, **kwargs)


@_proving(f"{_SPMD}:vLLMRollout.update_weights")
async def prove_colocated_llm(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout that has vLLM's `LLM` in its own process."""
    return await _proven(original, rollout, weights, *args, **kwargs)


async def _proven(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    if brings_adapter(kwargs) or not requested(Check.ENGINE):
        return await original(rollout, weights, *args, **kwargs)
    model = runner_in(rollout.inference_engine).model
    proof = Proof(model)
    count = 0

    def watched() -> Iterator[Weight]:
        nonlocal count
        for name, tensor in weights:
            proof.expect(name, tensor)
            count += 1
            yield name, tensor

    done = await original(rollout, watched(), *args, **kwargs)
    verdict = proof.conclude()
    verdict.require()
    number = getattr(model, _PROOFS, 0) + 1
    setattr(model, _PROOFS, number)
    reporting.report(
        f"weight sync {number} of the engine in this process (pid {os.getpid()}): {count} tensors, {verdict}"
    )
    return done


_WORKERS = "verl.workers.rollout.vllm_rollout.utils"
_LOADER = "verl.utils.vllm.patch:patch_vllm_moe_model_weight_loader"


# Every sync into a vLLM model, of verl-npu or of upstream, calls this target first, at all pins.
@weight_sync.wrap(
    _LOADER,
    why="vllm-ascend keeps copies of MLA's kv_b_proj, which go stale in a sync, and cannot tell if a square expert "
    "weight is transposed. The model then generates with wrong weights, without an error.",
    how="The copies are made anew in place whenever kv_b_proj is loaded, and transposed square experts are refused "
    "before anything is loaded.",
    link="none: nobody seems to have reported it; one recipe of verl's, r1_ascend, makes the copies anew by itself",
    retired_by=Never("it is vllm-ascend's doing, and which version is installed is not seen from verl's source"),
    requires=Defines(_LOADER),
)
def prepare_vllm_model_for_new_weights(
    original: Callable[[torch.nn.Module], object], model: torch.nn.Module
) -> object:
    """Prepare a vLLM model for a sync. Raises EngineError if a sync would garble its weights."""
    refuse_square_experts(model, laid_out_before_load=_processes_after_each_sync())
    refuse_disposed_projections(model)
    refresh_copies_on_load(model)
    return original(model)


def _processes_after_each_sync() -> bool:
    """Return whether this verl processes the weights after each sync, and so has experts laid out before it."""
    extension = getattr(sys.modules.get(_WORKERS), "vLLMColocateWorkerExtension", None)
    return hasattr(extension, "update_weights_from_ipc")
