"""How a step's data and a script's ranks are divided, and which ranks stand for all others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import PlanError
from ..rehearse.settings import Settings

__all__ = ["Share", "share_of"]

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_DEEPEST = 2
"""Micro batches that a phase is given: the second one finds the gradients of the first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What each rank of the trainer gets. Tokens and sequences."""

    world: int
    local: int
    """Ranks on a node."""
    inner: int
    """Ranks that share a sequence."""
    data: int
    """Ranks, or groups of ranks, with data of their own."""
    ranks: tuple[int, ...]
    """Those that are run: one for each kind."""
    kinds: Mapping[int, str]
    prompt: int
    response: int
    sequences: int
    """Of a rank, in a plan."""
    step_sequences: int
    """Of a rank, in a real step."""
    mini_sequences: int
    """Of a rank, between two steps of the optimizer."""
    notes: tuple[str, ...] = ()


def share_of(settings: Settings, response: int | None, prompt: int | None = None) -> Share:
    """Divide a script's step; lengths that are not given are the most that the script allows.

    Raises:
        PlanError: the parallel sizes do not divide the NPUs, or a length is missing.
    """
    local = _positive(settings, "trainer.n_gpus_per_node")
    world = local * _positive(settings, "trainer.nnodes")
    inner, stages = _inner(settings)
    if world % (inner * stages):
        raise PlanError(
            subject="the parallel sizes",
            expected=f"a product that divides {world} NPUs (trainer.nnodes x trainer.n_gpus_per_node)",
            found=str(inner * stages),
            fix="change the sizes, or the NPUs",
        )
    data = world // (inner * stages)
    most = _positive(settings, "data.max_prompt_length")
    prompt = most if prompt is None else min(prompt, most)
    longest = _positive(settings, "data.max_response_length")
    lengths, notes = longest if response is None else min(response, longest), []
    budget = _least_budget(settings, inner)
    if budget and prompt + lengths > budget:
        if prompt >= budget:
            raise PlanError(
                subject="the token budget",
                expected=f"room for a prompt of {prompt} tokens and an answer",
                found=f"{budget} tokens on the ranks that share a sequence",
                fix="raise the script's ppo_max_token_len_per_gpu and log_prob_max_token_len_per_gpu",
            )
        notes.append(
            f"a sequence of {prompt + lengths} tokens is longer than the token budget of {budget}: answers of "
            f"{budget - prompt} tokens are planned"
        )
        lengths = budget - prompt
    prompts = _positive(settings, "data.train_batch_size")
    answers = max(settings.whole(f"{_ROLLOUT}.n", 1), 1)
    step = max(prompts * answers // data, 1)
    mini = max(settings.whole(f"{_ACTOR}.ppo_mini_batch_size", prompts) * answers // data, 1)
    return Share(
        world=world,
        local=local,
        inner=inner,
        data=data,
        ranks=tuple(sorted({0, world // stages * (stages // 2), world // stages * (stages - 1)})),
        kinds=_kinds(world, stages),
        prompt=prompt,
        response=lengths,
        sequences=_sequences(settings, inner, prompt + lengths, mini),
        step_sequences=step,
        mini_sequences=mini,
        notes=tuple(notes),
    )


def _inner(settings: Settings) -> tuple[int, int]:
    """Ranks that share a sequence, and stages of the pipeline."""
    if settings.text(f"{_ACTOR}.strategy") == "megatron":
        inner = math.prod(
            max(settings.whole(f"{_ACTOR}.megatron.{name}_parallel_size", 1), 1)
            for name in ("tensor_model", "context")
        )
        return inner, max(settings.whole(f"{_ACTOR}.megatron.pipeline_model_parallel_size", 1), 1)
    return _ulysses(settings), 1


def _ulysses(settings: Settings) -> int:
    keys = (f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
    return max(1, *(settings.whole(key, 1) for key in keys))


def _kinds(world: int, stages: int) -> dict[int, str]:
    if stages == 1:
        return {0: f"each of the {world} ranks"}
    each = world // stages
    middle = stages // 2
    named = {0: "the first stage of the pipeline", each * middle: f"stage {middle + 1} of {stages}"}
    return {**named, each * (stages - 1): "the last stage of the pipeline"}


def _least_budget(settings: Settings, inner: int) -> int:
    """Tokens of the smallest micro batch that is filled by tokens; 0 if none is."""
    keys = []
    if settings.truth(f"{_ACTOR}.use_dynamic_bsz"):
        keys.append(f"{_ACTOR}.ppo_max_token_len_per_gpu")
    if settings.truth(f"{_ROLLOUT}.log_prob_use_dynamic_bsz"):
        keys.append(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu")
    return min((settings.whole(key) * inner for key in keys if settings.whole(key)), default=0)


def _sequences(settings: Settings, inner: int, length: int, mini: int) -> int:
    """Enough for two micro batches of each phase, if a mini batch has as many."""
    sizes = []
    for dynamic, tokens, number in (
        (f"{_ACTOR}.use_dynamic_bsz", f"{_ACTOR}.ppo_max_token_len_per_gpu", f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
        (
            f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
            f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
            f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        ),
    ):
        if settings.truth(dynamic):
            sizes.append(max(settings.whole(tokens) * inner // length, 1))
        else:
            sizes.append(max(settings.whole(number, 1), 1))
    return min(_DEEPEST * math.lcm(*sizes), mini)


def _positive(settings: Settings, key: str) -> int:
    found = settings.whole(key)
    if found > 0:
        return found
    raise PlanError(
        subject=key, expected="a number above 0", found=settings.text(key) or "none", fix="set it in the script"
    )
