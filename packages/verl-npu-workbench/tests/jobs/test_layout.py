from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.keys import ACTOR, ROLLOUT
from verl_npu_workbench.jobs.layout import Parallelism, indivisible, npus_of, parallelism_of
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer

EXPERT_TENSOR = f"{ACTOR}.megatron.expert_tensor_parallel_size"
MEGATRON = {
    f"{ACTOR}.strategy": "megatron",
    f"{ACTOR}.megatron.tensor_model_parallel_size": 4,
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    f"{ACTOR}.megatron.expert_model_parallel_size": 8,
    EXPERT_TENSOR: None,
}


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (MEGATRON, Parallelism(tensor=4, pipeline=2, expert=8, expert_tensor=4)),
        (
            {**MEGATRON, f"{ACTOR}.megatron.expert_tensor_parallel_size": 1},
            Parallelism(tensor=4, pipeline=2, expert=8),
        ),
        ({f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, Parallelism(sequence=4)),
        ({}, Parallelism()),
    ],
)
def test_sizes_are_those_of_the_strategy(settings: Mapping[str, object], sizes: Parallelism) -> None:
    assert parallelism_of(Settings(settings)) == sizes


def test_a_replica_is_divided_among_npus_that_experts_lie_across() -> None:
    sizes = Parallelism(tensor=2, pipeline=2, context=3, expert=8)
    assert (sizes.sharing, sizes.replica, sizes.fewest) == (6, 12, 48)
    assert (sizes.divides(24), sizes.divides(16)) == (True, False)
    assert (sizes.replicas(24), sizes.replicas(4)) == (2, 1)


STARTS = {"Ray": ((0, 1, True), 16), "torchrun": ((4, 2, True), 8), "torchrun that counts": ((4, 2, False), 0)}


@pytest.mark.parametrize(("started", "npus"), STARTS.values(), ids=STARTS.keys())
def test_npus_are_those_of_whoever_starts_the_ranks(started: tuple[int, int, bool], npus: int) -> None:
    ranks, nodes, counted = started
    trainer = Trainer("a.b", (), (), ranks, Path("/"), {}, nodes, counted)
    assert npus_of(trainer, Settings({"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2})) == npus


WRONG: dict[str, tuple[Mapping[str, object], list[tuple[str, str, int]]]] = {
    "Megatron": (MEGATRON, [(f"{ACTOR}.megatron", "TP 4 x PP 2 x CP 1 = 8", 12)]),
    "experts": (
        {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.megatron.expert_model_parallel_size": 5},
        [(f"{ACTOR}.megatron", "expert TP 1 x EP 5 x PP 1 = 5", 12)],
    ),
    "a rollout with its own NPUs": ({"rollout.n_gpus_per_node": 5, f"{ROLLOUT}.tensor_model_parallel_size": 4}, []),
}


@pytest.mark.parametrize(("settings", "found"), WRONG.values(), ids=WRONG.keys())
def test_sizes_that_do_not_divide_the_npus_are_found(
    settings: Mapping[str, object], found: list[tuple[str, str, int]]
) -> None:
    said = [(each.key, each.sizes, each.npus) for each in indivisible(Settings(settings), 12)]
    assert said == found
    assert list(indivisible(Settings(settings), 0)) == []
