from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.plan import planning
from verl_npu_workbench.plan.planning import changed, changes_of
from verl_npu_workbench.plan.share import share_of

from verl_npu.errors import PlanError

from .conftest import job_of

ACTOR = "actor_rollout_ref.actor"


def test_changes_are_torchruns_options_a_variable_or_settings(torchrun: Trainer) -> None:
    changes = (("data.max_length", 5), ("--nnodes", 4), ("--nproc_per_node", 16), ("VERL_NPU_TOKEN_BUDGET", 1))
    found = changed(torchrun, changes)
    assert (found.ranks, found.nodes) == (16, 4)
    assert found.exports == {**torchrun.exports, "VERL_NPU_TOKEN_BUDGET": "1"}
    assert [each.lstrip("+") for each in found.overrides] == ["data.max_length=5"]
    assert changed(torchrun, ()) == torchrun


def test_a_rank_has_our_torch_npu_whichever_is_installed_or_asked_for(torchrun: Trainer) -> None:
    asked = dataclasses.replace(torchrun, exports={"VIRTUAL_ASCEND_TORCH_NPU": "real"})
    assert planning._variables(job_of(), asked, False)["VIRTUAL_ASCEND_TORCH_NPU"] == "ours"


def test_a_rank_imports_the_checkout_of_mindspeed_first(torchrun: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_MINDSPEED", "/mindspeed")
    monkeypatch.setenv("PYTHONPATH", "/own")
    assert planning._variables(job_of(), torchrun, False)["PYTHONPATH"] == "/mindspeed:/own"


@pytest.mark.parametrize(
    ("others", "missing", "named"),
    [
        ({}, "megatron.core", "megatron-core"),
        ({}, "mindspeed", "MindSpeed"),
        ({"use_mbridge": True}, "mbridge", "mbridge"),
        ({"use_mbridge": True, "vanilla_mbridge": False}, "megatron.bridge", "Megatron-Bridge"),
    ],
)
def test_a_package_of_megatron_that_is_missing_is_named(
    settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: dict[str, bool], missing: str, named: str
) -> None:
    chosen = {f"{ACTOR}.megatron.{key}": value for key, value in others.items()}
    megatron = settings(**{f"{ACTOR}.strategy": "megatron", **chosen})
    monkeypatch.delenv("VERL_NPU_MINDSPEED", raising=False)
    monkeypatch.setattr(planning, "is_installed", lambda module: module != missing)
    with pytest.raises(PlanError, match=f"expected the package {named}"):
        planning._check_megatron(megatron)
    monkeypatch.setenv("VERL_NPU_MINDSPEED", str(tmp_path))
    (tmp_path / "mindspeed").mkdir()
    (tmp_path / "mindspeed" / "__init__.py").touch()
    if missing == "mindspeed":
        planning._check_megatron(megatron)


@pytest.fixture
def told(settings):
    """Return a function that makes the changes that a rank gets for a script with these settings."""

    def make(**others: object) -> dict[str, object]:
        chosen = settings(**others)
        return changes_of(chosen, share_of(chosen), Path("made"))

    return make


def test_a_rank_gets_two_micro_batches_and_no_weights(told) -> None:
    found = told(**{"actor_rollout_ref.model.path": "mine"})
    assert (found["data.train_batch_size"], found[f"{ACTOR}.ppo_mini_batch_size"]) == (64, 64)
    assert found["actor_rollout_ref.rollout.n"] == 1
    assert found["actor_rollout_ref.model.path"] == "made"
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu" not in found


def test_a_size_beside_a_budget_does_not_have_to_divide_the_few_sequences_of_a_plan(told) -> None:
    dynamic = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    assert told(**dynamic)[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 1
    together = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": None, f"{ACTOR}.ppo_micro_batch_size": 32}
    found = told(**dynamic, **together)
    assert found[f"{ACTOR}.ppo_micro_batch_size"] == 8, "one for each rank"
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu" not in found


def test_a_budget_that_is_overdrawn_is_raised(told) -> None:
    found = told(**{f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096})
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 7680


def test_a_budget_that_is_raised_does_not_raise_those_that_default_to_it(told) -> None:
    budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
    scores = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
    dynamic = {f"{ACTOR}.use_dynamic_bsz": True, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True}
    found = told(**dynamic, **{budget: 4096, scores: 32 * 4096})
    assert (found[budget], found[scores]) == (7680, 32 * 4096)


@pytest.mark.parametrize(("given", "planned"), [(None, 100), ("ten", "ten")])
def test_a_schedule_has_the_steps_of_the_script(told, given: str | None, planned: object) -> None:
    steps = f"{ACTOR}.optim.total_training_steps"
    assert told(**{steps: -1, "trainer.total_training_steps": given})[steps] == planned
