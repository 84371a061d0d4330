"""Compares the layers of trainer and engine between the generation and the training of a step, on all ranks of a job.

Each rank records its engine before it sleeps, and then the trainer, for the same tokens. The rank whose engine is
furthest from the trainer collects the trainer's weights and judges both recordings.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from verl_npu import environment
from verl_npu.reporting import report, warn

from ..simulation.rollout import NAME
from ..simulation.rollout.model import build, text_settings
from ..simulation.rollout.weights import Weights
from .causes import Sampling
from .comparing import compare, content, numbers
from .computing import generated
from .recording import LOGPROBS, Batch, Place, Recorder, Recording, recorded
from .report import lines_of
from .running import IN_JOBS

# verl's objects, which have no types.
Worker: TypeAlias = Any
"""verl's ActorRolloutRefWorker, which has a trainer and a rollout engine."""

_NEW = 12
_STATE = "_verl_npu_layers"
"""An attribute of the worker: the step that was compared last, the last step, and when its first generation ended."""


async def compare_before_training(
    original: Callable[[Worker], Awaitable[object]], worker: Worker, every: int
) -> object:
    """After the first generation of the first step, and of every N-th step, compare the layers of the engine and the
    trainer. In all cases, let the worker return to training."""
    began, (compared, last, ended) = time.monotonic(), getattr(worker, _STATE, (0, 0, 0.0))
    step = _step_of(worker)
    engine = getattr(worker.rollout, "engine", None)
    due = step != compared and (step % every == 0 or not compared) and not _said_why_not(worker)
    # Before the first generation, verl also calls this method.
    if not due or not any(_gathered(engine is not None and bool(engine.answered))):
        done = await original(worker)
        if not due and step != last:
            setattr(worker, _STATE, (compared, step, time.monotonic()))
        return done
    mine = _tried(step, _record_engine, worker, engine) if engine is not None else None
    spent = time.monotonic() - began
    done = await original(worker)
    again = time.monotonic()
    # A new model gets random weights first.
    with torch.random.fork_rng(devices=[]):
        said = _tried(step, _compare, worker, step, mine)
    spent += time.monotonic() - again
    if said is not None:
        first, lines = said
        cost = f"Compared in {spent:.1f} s"
        # Before that, no whole step has been seen, from one generation to the next.
        if last and step == last + 1:
            share = spent / (began - ended)
            cost += f", {share:.0%} of a step; at N={every}, {share / every:.1%} of all steps"
        (warn if first else report)(f"layers of step {step}: {'. '.join([*lines, cost])}")
    setattr(worker, _STATE, (step, step, time.monotonic()))
    return done


def _tried(step: int, function: Callable[..., Any], *given: object) -> Any:
    """Call a function. If it fails, warn and return None, because a comparison must not end a training."""
    try:
        return function(*given)
    except Exception as error:
        warn(f"layers of step {step} are not compared: {type(error).__name__}: {error}")
        return None


def _step_of(worker: Worker) -> int:
    """Return the number of the step, also after a job was resumed: the scheduler has counted the updates."""
    scheduler = getattr(worker, "actor_lr_scheduler", None)
    return 0 if scheduler is None else int(scheduler.last_epoch) + 1


def _said_why_not(worker: Worker) -> bool:
    """Return whether this job's layers cannot be compared, and report the reason."""
    settings, kind = worker.config.rollout, getattr(worker.actor_model_config, "model_type", "")
    why = ""
    if settings.name != NAME or not hasattr(worker.rollout, "engine"):
        why = f"the engine {settings.name} in mode {settings.mode} cannot be recorded within a job"
    elif kind not in IN_JOBS:
        why = f"expected a model of type {', '.join(IN_JOBS)}; found {kind}"
    elif worker._is_lora:
        why = "the trainer has a LoRA adapter"
    elif worker.config.actor.get("ulysses_sequence_parallel_size", 1) > 1:
        # The ranks of a group compute the same rows, and each of them has other prompts.
        why = "the trainer uses Ulysses sequence parallelism"
    if why and dist.get_rank() == 0:
        report(f"layers are not compared: {why}")
    return bool(why)


def _gathered(mine: object) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _record_engine(worker: Worker, engine: Any) -> Recording:
    """Let the engine answer the first and the last prompt of this step once more."""
    prompts = [list(each.tokens) for each in (engine.answered[0], engine.answered[-1])]
    length = min(_NEW, int(worker.config.rollout.response_length))
    return generated(engine.model, prompts, length, float(worker.config.rollout.temperature))


def _compare(worker: Worker, step: int, engine: Recording | None) -> tuple[object, Sequence[str]] | None:
    """Compare this rank's recordings. Return the first bad operator and the result as text on the rank that judges."""
    batches = _gathered(engine and engine.batch)
    batch = next((each for each in (batches[dist.get_rank()], *batches) if each is not None), None)
    if batch is None:
        return None
    trainer = _tried(step, _record_trainer, worker, batch)
    apart = None if trainer is None else -1.0
    if trainer is not None and engine is not None:
        found = numbers(trainer.values[LOGPROBS], engine.values[LOGPROBS]).mean_difference
        apart = math.inf if math.isnan(found) else found
    all_apart = _gathered(apart)
    if None in all_apart:
        return None
    judge = all_apart.index(max(all_apart))
    same = engine is not None and engine.dtype == trainer.dtype
    model = _host_model(worker, trainer.dtype if same else torch.float32, dist.get_rank() == judge)
    if model is None or engine is None:
        return None
    settings = worker.config.rollout
    sampling = Sampling(float(settings.temperature), settings.top_k, settings.top_p, int(settings.prompt_length))
    result = content(compare(model, trainer, engine, sampling), ())
    where = f"rank {judge} of {len(all_apart)}, whose engine is furthest from the trainer"
    folder = environment.MANIFEST_DIR.read()
    if folder:
        path = Path(folder, "layers", f"step-{step}.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"step": step, "rank": judge, **result}, indent=2))
    return result["first"], [where, *(line.rstrip(".") for line in lines_of(result))]


def _record_trainer(worker: Worker, batch: Batch) -> Recording:
    """Let verl's own compute_log_prob compute the tokens, one sequence at a time and padded as in training."""
    from verl import DataProto

    recorder, pad = Recorder(), int(worker.tokenizer.pad_token_id)
    before, after = int(worker.config.rollout.prompt_length), int(worker.config.rollout.response_length)
    with recorded(worker.actor_module_fsdp, recorder):
        for row, (tokens, prompt) in enumerate(zip(batch.tokens, batch.prompts, strict=True)):
            left = max(0, before - prompt)
            right = max(0, after - (len(tokens) - prompt))
            seen = torch.tensor([[0] * left + [1] * len(tokens) + [0] * right])
            ids = torch.tensor([[pad] * left + [*tokens] + [pad] * right])
            places: list[Place | None] = [(row, at) for at in range(len(tokens) - 1)]
            answers = places[prompt - 1 :]
            places.append(None)
            if not worker.actor.use_remove_padding:
                places = [None] * left + places + [None] * right
            recorder.begin(places)
            tensors = {
                "input_ids": ids,
                "attention_mask": seen,
                "position_ids": (seen.cumsum(-1) - 1).clamp(min=0),
                "responses": ids[:, left + prompt :],
            }
            made = worker.compute_log_prob(DataProto.from_dict(tensors=tensors))
            recorder.begin(answers)
            recorder.add(LOGPROBS, made.batch["old_log_probs"][0, : len(answers), None])
            recorder.begin(())
    return recorder.recording(batch, getattr(worker.actor, "param_dtype", torch.bfloat16))


def _host_model(worker: Worker, dtype: torch.dtype, wanted: bool) -> Any:
    """Collect the trainer's weights, one at a time. Return a model with them on the host if this rank wants it."""
    from torch.distributed.tensor import DTensor
    from verl.utils.fsdp_utils import load_fsdp_model_to_gpu, offload_fsdp_model_to_cpu

    if worker._is_offload_param:
        load_fsdp_model_to_gpu(worker.actor_module_fsdp)
    taken: dict[str, torch.Tensor] = {}
    for name, value in worker.actor_module_fsdp.state_dict().items():
        whole = value.to(torch.npu.current_device()).full_tensor() if isinstance(value, DTensor) else value
        if wanted:
            taken[name] = whole.to("cpu", dtype)
    if worker._is_offload_param:
        offload_fsdp_model_to_cpu(worker.actor_module_fsdp)
    if not wanted:
        return None
    # Only here, where no other rank waits for this one: a large model may not fit into the host's memory.
    model = build(worker.actor_model_config, dtype, worker.config.model.path)
    weights = Weights(model, text_settings(worker.actor_model_config))
    weights.take(taken.items())
    weights.complete()
    return model
