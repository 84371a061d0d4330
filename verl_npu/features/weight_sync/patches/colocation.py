"""VERL_NPU_WEIGHT_SYNC_CHECK=engine for an engine on its trainer's own NPUs: all its weights come in one call."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from .... import reporting
from ....registry.source.probe import Defines, Never
from ..engines.proof import Proof
from ..engines.vllm import runner_in
from ..feature import weight_sync
from ..settings import Check
from ..transport.drawing import Weight
from .protocols import Rollout
from .readback import brings_adapter, requested

__all__ = ["prove_colocated_engine", "prove_colocated_llm", "prove_earlier_colocated_engine"]

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
    return await _proven(original, rollout, weights, args, kwargs)


@_proving(f"{_SPMD}:vLLMAsyncRollout.update_weights")
async def prove_earlier_colocated_engine(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout, as of September 2025."""
    return await _proven(original, rollout, weights, args, kwargs)


@_proving(f"{_SPMD}:vLLMRollout.update_weights")
async def prove_colocated_llm(
    original: Update, rollout: Rollout, weights: Iterable[Weight], *args: object, **kwargs: object
) -> object:
    """Update the engine of a rollout that has vLLM's `LLM` in its own process."""
    return await _proven(original, rollout, weights, args, kwargs)


async def _proven(
    original: Update,
    rollout: Rollout,
    weights: Iterable[Weight],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
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
