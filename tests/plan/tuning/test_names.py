"""Which trainer a script has, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from verl_npu.errors import PlanError
from verl_npu.plan.tuning.names import module_of, names_of
from verl_npu.rehearse.composition import Entry
from verl_npu.rehearse.settings import Settings
from verl_npu.rehearse.trainer import Trainer


def test_reinforcement_learning_is_not_fine_tuning(settings, torchrun: Trainer) -> None:
    assert names_of(torchrun, settings()) is None


@pytest.mark.parametrize(("engines", "model"), [(False, "model.partial_pretrain"), (True, "model.path")])
def test_a_trainer_is_known_by_its_settings(tuning_settings, torchrun: Trainer, engines: bool, model: str) -> None:
    names = names_of(torchrun, tuning_settings(engines))
    assert names is not None
    assert (names.engines, names.model) == (engines, model)


def test_another_trainer_is_one_line(torchrun: Trainer) -> None:
    with pytest.raises(PlanError, match=r"the trainer verl\.trainer\.sft_trainer: expected one of verl's"):
        names_of(torchrun, Settings({"model.path": "x"}))


def test_an_engine_that_is_not_planned_is_one_line(tuning_settings, torchrun: Trainer) -> None:
    with pytest.raises(PlanError, match=r"engine\.strategy: expected fsdp or fsdp2 .*, found megatron"):
        names_of(torchrun, tuning_settings(True, engine__strategy="megatron"))


def test_npus_that_nobody_tells_are_one_line(tuning_settings, torchrun: Trainer) -> None:
    with pytest.raises(PlanError, match="expected torchrun to start it, whose --nproc_per_node and --nnodes"):
        names_of(dataclasses.replace(torchrun, ranks=0), tuning_settings())


def test_npus_that_torchrun_would_count_are_one_line(tuning_settings, torchrun: Trainer) -> None:
    with pytest.raises(PlanError, match="expected numbers for torchrun's --nproc_per_node and --nnodes"):
        names_of(dataclasses.replace(torchrun, counted=False), tuning_settings())


def _entry(source: Path) -> Entry:
    return Entry(source, source.parent, "sft_trainer")


def test_a_trainer_that_is_named_by_its_file_is_a_module(torchrun: Trainer, tmp_path: Path) -> None:
    named = dataclasses.replace(torchrun, module="verl/trainer/fsdp_sft_trainer.py")
    entry = _entry(tmp_path / "verl" / "trainer" / "fsdp_sft_trainer.py")
    assert module_of(named, entry, tmp_path) == "verl.trainer.fsdp_sft_trainer"
    assert module_of(torchrun, entry, tmp_path) == "verl.trainer.sft_trainer"


def test_a_file_of_another_tree_is_one_line(torchrun: Trainer, tmp_path: Path) -> None:
    named = dataclasses.replace(torchrun, module="../mine.py")
    with pytest.raises(PlanError, match=r"the trainer \.\./mine\.py: expected a file in"):
        module_of(named, _entry(tmp_path / "mine.py"), tmp_path / "tree")
