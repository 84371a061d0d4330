from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.job import Entry, Job
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.plan.fine_tuning import module_of, names_of, tuning_changes, tuning_share
from verl_npu_workbench.plan.lengths import Length
from verl_npu_workbench.plan.share import Share

from verl_npu.errors import PlanError


def test_reinforcement_learning_is_not_fine_tuning(settings, torchrun: Trainer) -> None:
    assert names_of(torchrun, settings()) is None


@pytest.mark.parametrize(("engines", "model"), [(False, "model.partial_pretrain"), (True, "model.path")])
def test_a_trainer_is_known_by_its_settings(tuning_settings, torchrun: Trainer, engines: bool, model: str) -> None:
    names = names_of(torchrun, tuning_settings(engines))
    assert names is not None
    assert (names.engines, names.model) == (engines, model)


REFUSED = {
    "neither trainer": (
        {},
        {"model.strategy": None, "model.partial_pretrain": None},
        "its settings belong to none of verl's trainers",
    ),
    "another engine": (
        {},
        {"model.strategy": "megatron"},
        r"model\.strategy: expected fsdp or fsdp2, .*; found megatron",
    ),
    "NPUs that nobody tells": (
        {"ranks": 0},
        {},
        "expected a script that starts the trainer with torchrun, so that --nproc_per_node and",
    ),
    "NPUs that torchrun would count": (
        {"counted": False},
        {},
        "expected numbers for torchrun's --nproc_per_node and --nnodes",
    ),
}


@pytest.mark.parametrize(("started", "changed", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_planned_is_one_line(tuning_settings, torchrun: Trainer, started, changed, said: str) -> None:
    values = {**tuning_settings().values, **changed}
    settings = Settings({key: value for key, value in values.items() if value is not None})
    with pytest.raises(PlanError, match=said):
        names_of(dataclasses.replace(torchrun, **started), settings)


def _job(trainer: Trainer, module: str, source: Path, tree: Path) -> Job:
    named = dataclasses.replace(trainer, module=module)
    return Job(
        trainer=named,
        tree=tree,
        entry=Entry(source, source.parent, "sft_trainer"),
        settings=Settings({}),
        interpolations={},
        dangling={},
        config={},
    )


def test_a_trainer_that_is_named_by_its_file_is_a_module(torchrun: Trainer, tmp_path: Path) -> None:
    source = tmp_path / "verl" / "trainer" / "fsdp_sft_trainer.py"
    by_file = _job(torchrun, "verl/trainer/fsdp_sft_trainer.py", source, tmp_path)
    assert module_of(by_file) == "verl.trainer.fsdp_sft_trainer"
    assert module_of(_job(torchrun, torchrun.module, source, tmp_path)) == "verl.trainer.sft_trainer"


def test_a_file_of_another_tree_is_one_line(torchrun: Trainer, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"the trainer \.\./mine\.py: expected a file in"):
        module_of(_job(torchrun, "../mine.py", tmp_path / "mine.py", tmp_path / "tree"))


Divide = Callable[..., Share]


@pytest.fixture
def divide(tuning_settings, torchrun: Trainer) -> Divide:
    """Return a function that divides a step of these settings."""

    def make(
        engines: bool = False,
        response: int | None = None,
        prompt: int | None = None,
        measured: tuple[Length, ...] = (),
        nodes: int = 1,
        **others: object,
    ) -> Share:
        trainer = dataclasses.replace(torchrun, nodes=nodes)
        chosen = tuning_settings(engines, **others)
        names = names_of(trainer, chosen)
        assert names is not None
        return tuning_share(names, trainer, chosen, response, prompt, measured)

    return make


def test_npus_are_torchruns(divide: Divide) -> None:
    share = divide(nodes=2)
    assert (share.world, share.local, share.data, share.step_sequences) == (16, 8, 16, 8)


def test_a_plan_has_two_micro_batches(divide: Divide) -> None:
    share = divide()
    assert (share.sequences, share.mini_sequences, share.length) == (8, 16, "4096")


def test_an_engine_shares_packed_sequences_only_and_that_is_said(divide: Divide) -> None:
    shared = {"engines": True, "response": 4096, "engine.ulysses_sequence_parallel_size": 2}
    assert divide(**shared).notes == ()
    assert "each NPU computes whole sequences" in divide(**shared, **{"model.use_remove_padding": False}).notes[0]


def test_sequences_fill_a_token_budget(divide: Divide) -> None:
    share = divide(engines=True)
    assert share.micro_batches[0].key == "data.max_token_len_per_gpu"
    # Of 16 sequences with 3072 tokens verl makes three micro batches: six are more tokens than four with 4096.
    assert set(share.lengths) == {(0, 3072)}
    assert "because several of the shorter sequences fill a token budget" in share.notes[0]


def test_engines_have_micro_batches_of_sequences_too(divide: Divide) -> None:
    share = divide(engines=True, **{"data.use_dynamic_bsz": False})
    assert share.micro_batches[0].key == "data.micro_batch_size_per_gpu"
    assert share.sequences == 8


def test_only_the_sum_of_prompt_and_answer_counts(divide: Divide) -> None:
    shares = [divide(engines=True, response=1000), divide(engines=True, response=600, prompt=400)]
    assert [share.length for share in shares] == ["1000", "1000"]
    assert divide(engines=True, prompt=400).length == "4096"


def test_a_shorter_sequence_is_padded_without_sequence_parallelism_and_that_is_said(divide: Divide) -> None:
    share = divide(response=100)
    assert share.length == "4096"
    assert share.notes == ("every sequence is padded to data.max_length",)


def test_measured_lengths_are_the_heaviest_that_follow_each_other(divide: Divide) -> None:
    share = divide(engines=True, **{"data.use_dynamic_bsz": False}, measured=((1, 1),) * 50 + ((1000, 9000),) * 8)
    assert share.lengths == ((0, 4096),) * 8
    assert "8 sequences are longer than the script allows and are cut" in share.notes


def test_a_sequence_longer_than_the_budget_is_cut_and_that_is_said(divide: Divide) -> None:
    share = divide(engines=True, **{"data.max_token_len_per_gpu": 2048})
    assert share.length == "2048"
    assert "the plan uses sequences of 2048 tokens" in share.notes[0]


def test_micro_batches_that_do_not_make_a_step_are_one_line(divide: Divide) -> None:
    with pytest.raises(
        PlanError, match=r"data\.train_batch_size=128: expected a multiple of 24 \(8 data-parallel ranks x data"
    ):
        divide(**{"data.micro_batch_size_per_gpu": 3})


def test_an_engine_takes_a_smaller_last_micro_batch(divide: Divide) -> None:
    share = divide(engines=True, **{"data.use_dynamic_bsz": False, "data.micro_batch_size_per_gpu": 3})
    assert share.step_sequences == 16


def test_ranks_that_do_not_divide_a_step_are_one_line(divide: Divide) -> None:
    with pytest.raises(PlanError, match=r"data\.train_batch_size=100: expected a multiple of 8"):
        divide(engines=True, **{"data.train_batch_size": 100})


def test_parallel_sizes_that_do_not_divide_the_npus_are_one_line(divide: Divide) -> None:
    with pytest.raises(
        PlanError, match=r"whose product divides the number of NPUs, 8 \(--nnodes x --nproc_per_node of torchrun\)"
    ):
        divide(ulysses_sequence_parallel_size=3)


def test_two_steps_of_two_micro_batches_read_nothing(tuning_settings, torchrun: Trainer) -> None:
    chosen = tuning_settings(True, **{"model.tokenizer_path": "mine", "model.use_shm": True})
    names = names_of(torchrun, chosen)
    assert names is not None
    found = tuning_changes(names, chosen, Path("made"))
    assert found["trainer.total_training_steps"] == 2
    assert (found["model.path"], found["model.tokenizer_path"]) == ("made", "made")
    assert found["model.use_shm"] is False
    assert found["checkpoint.save_contents"] == ["model", "optimizer", "extra"]


def test_a_budget_that_many_sequences_overdraw_is_raised(tuning_settings, torchrun: Trainer) -> None:
    chosen = tuning_settings(True, **{"data.max_token_len_per_gpu": 4096})
    names = names_of(torchrun, chosen)
    assert names is not None
    share = tuning_share(names, torchrun, chosen)
    assert share.budgets["data.max_token_len_per_gpu"] == 7680
    assert ["7680 tokens instead of 4096" in note for note in share.notes] == [False, True]
