"""A recipe's proposed successor has as many prompts between two syncs, prompts ahead, and steps as the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.jobs.successor import successor_findings

from verl_npu.findings import Severity
from verl_npu.registry.source.tree import SourceTree

from .test_rules import ACTOR, ROLLOUT, script

FULLY = "verl.experimental.fully_async_policy.fully_async_main"
ONE_STEP = "recipe.one_step_off_policy.main_ppo"
V1 = "trainer.v1.separate_async"
WHOLE = """
@register_trainer("separate_async")
class Separate:
    hybrid_rollout = None
    def warm_up(self, num_warmup_batches):
        for _ in range(num_warmup_batches):
            pass
"""
PARTS = """
@register_trainer("separate_async")
class Separate:
    def __init__(self, config):
        self.hybrid_rollout, self.servers = None, config.actor_rollout_ref.get("hybrid_engine", True)
"""
FULLY_SETTINGS: dict[str, object] = {
    "data.train_batch_size": 0,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ROLLOUT}.calculate_log_probs": True,
    "rollout.nnodes": 2,
    "rollout.n_gpus_per_node": 4,
    "rollout.total_rollout_steps": 1000,
    "async_training.require_batches": 2,
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.staleness_threshold": 0.5,
    "async_training.use_dynamic_resource_scheduling": False,
    "async_training.dynamic_schedule_deactivate_ratio": 0.3,
}


def tree(folder: Path, trainer: str, buffer: str = "") -> SourceTree:
    for name, text in {
        "__init__": "",
        "trainer/ppo/v1/separate": trainer,
        "trainer/ppo/v1/replay_buffer": buffer,
    }.items():
        path = folder / "verl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree.at(folder, ("verl",))


def proposed(
    module: str, settings: dict[str, object], sources: SourceTree, overrides: tuple[str, ...] = ()
) -> tuple[dict[str, str], str]:
    """Return the proposed settings, and the text about settings without a successor."""
    given = script(settings, overrides, module=module)
    (finding,) = successor_findings(given.trainer, given.settings, sources)
    assert finding.severity is Severity.OK
    assert not finding.refused
    words = [word.rstrip(",") for word in finding.fix.split() if "=" in word]
    return dict(word.split("=", 1) for word in words), finding.why


def test_fully_async_keeps_its_prompts_between_two_syncs(tmp_path: Path) -> None:
    overrides = ("async_training.partial_rollout=False", "rollout.n_gpus_per_node=4", "+rollout.n=8")
    settings, without = proposed(FULLY, FULLY_SETTINGS, tree(tmp_path, WHOLE), overrides)
    assert settings == {
        "trainer.use_v1": "True",
        "trainer.v1.trainer_mode": "'separate_async'",
        f"{V1}.parameter_sync_step": "8",
        "data.train_batch_size": "128",
        f"{V1}.num_warmup_batches": "1",
        "trainer.total_training_steps": "7",
        "trainer.v1.sampler.max_off_policy_strategy": "'wait'",
        f"{ROLLOUT}.nnodes": "2",
        f"{ROLLOUT}.n_gpus_per_node": "4",
        f"{ROLLOUT}.calculate_log_probs": "True",
    }
    assert "async_training.partial_rollout, rollout.n" in without
    assert "rollout.n_gpus_per_node" not in without


def test_a_later_trainer_takes_a_part_of_a_batch_and_no_servers_beside_it(tmp_path: Path) -> None:
    buffer = "if self.max_off_policy_threshold is not None: check()"
    settings, without = proposed(FULLY, FULLY_SETTINGS, tree(tmp_path, PARTS, buffer))
    assert settings[f"{V1}.num_warmup_batches"] == "0.5"
    assert settings["trainer.v1.sampler.max_off_policy_threshold"] == "null"
    assert settings["actor_rollout_ref.hybrid_engine"] == "False"
    assert "an equivalent of each of the recipe's settings" in without


def test_lent_npus_are_lent_by_the_successor_too(tmp_path: Path) -> None:
    lent = {**FULLY_SETTINGS, "async_training.use_dynamic_resource_scheduling": True}
    settings, _without = proposed(FULLY, lent, tree(tmp_path, PARTS))
    assert settings[f"{V1}.hybrid_rollout.enable_switch"] == "True"
    assert settings[f"{V1}.hybrid_rollout.switch_threshold_ratio"] == "0.3"
    assert "actor_rollout_ref.hybrid_engine" not in settings


def test_one_step_off_is_one_batch_ahead(tmp_path: Path) -> None:
    given = {"data.train_batch_size": 100, f"{ACTOR}.ppo_mini_batch_size": 32, "rollout.n_gpus_per_node": 2}
    settings, _without = proposed(ONE_STEP, given, tree(tmp_path, WHOLE))
    assert settings["data.train_batch_size"] == "96"
    assert settings[f"{V1}.parameter_sync_step"] == "3"
    assert settings[f"{V1}.num_warmup_batches"] == "1"


@pytest.mark.parametrize(("module", "trainer"), [("verl.trainer.main_ppo", WHOLE), (FULLY, "")])
def test_nothing_is_proposed_for_another_trainer(module: str, trainer: str, tmp_path: Path) -> None:
    given = script(FULLY_SETTINGS, module=module)
    assert list(successor_findings(given.trainer, given.settings, tree(tmp_path, trainer))) == []
