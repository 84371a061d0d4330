"""The modes of the v1 trainer: what upstream's own assertions refuse, and nothing that they take."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.jobs.modes import of_modes

from verl_npu.findings import Finding
from verl_npu.registry.source.tree import SourceTree

from .test_rules import ACTOR, ROLLOUT, script

TRAINER = '''
from verl.trainer.ppo.utils import need_reward_model
from .base import PPOTrainer, register_trainer

@register_trainer("separate_async")
class Separate(PPOTrainer):
    """Apart."""

    def __init__(self, config):
        batch = config.data.train_batch_size
        mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
        steps = config.trainer.v1.separate_async.parameter_sync_step
        assert batch == steps * mini, f"batch={batch} is not {steps} x {mini}"
        assert config.actor_rollout_ref.rollout.nnodes > 0, "nnodes must be > 0"
        assert config.actor_rollout_ref.rollout.checkpoint_engine.backend != "naive", "please use nccl"
        assert probe(config), "nobody here can tell"
        if need_reward_model(config):
            assert config.reward.reward_model.enable_resource_pool, "no colocated reward model"
        if config.actor_rollout_ref.rollout.get("disaggregation", {}):
            raise ValueError("no disaggregation")
        super().__init__(config)
        assert False, "what comes behind it is another question"
'''
ENGINES = """
@CheckpointEngineRegistry.register("nccl")
class HCCLCheckpointEngine: ...

@CheckpointEngineRegistry.register("nixl")
class NIXLCheckpointEngine: ...

@CheckpointEngineRegistry.register("delta_sharded")
class Delta: ...
"""
MODE, BACKEND = "trainer.v1.trainer_mode", f"{ROLLOUT}.checkpoint_engine.backend"
RIGHT: dict[str, object] = {
    "trainer.use_v1": True,
    "trainer.v1": {},
    MODE: "separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ROLLOUT}.nnodes": 1,
    BACKEND: "nccl",
    "reward.reward_model.enable": False,
    "reward.reward_model.enable_resource_pool": False,
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in {
        "verl/__init__.py": "",
        "verl/trainer/ppo/v1/separate.py": TRAINER,
        "verl/trainer/ppo/utils.py": "def need_reward_model(config):\n    return config.reward.reward_model.enable\n",
        "verl/checkpoint_engine/engines.py": ENGINES,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree.at(tmp_path, ("verl",))


def found(given: dict[str, object], tree: SourceTree) -> list[Finding]:
    """What is found in a script, of its trainer's mode alone."""
    right = script(given)
    return list(of_modes(right.trainer.module, right.settings, tree))


@pytest.mark.parametrize("given", [{}, {"trainer.use_v1": False, MODE: "any"}, {f"{ROLLOUT}.nnodes": 3}])
def test_a_right_script_has_none(given: dict[str, object], tree: SourceTree) -> None:
    assert found({**RIGHT, **given}, tree) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({MODE: "seperate_async"}, "verl has no trainer of that name"),
        ({f"{ACTOR}.ppo_mini_batch_size": 8}, "batch=64 is not 4 x 8"),
        ({f"{ROLLOUT}.nnodes": 0}, "nnodes must be > 0"),
        ({BACKEND: "naive"}, "please use nccl"),
        ({"reward.reward_model.enable": True}, "no colocated reward model"),
        ({f"{ROLLOUT}.disaggregation.enabled": True}, "no disaggregation"),
        ({BACKEND: "hccl"}, "registered as nccl"),
        ({BACKEND: "delta_sharded"}, "for SGLang alone"),
    ],
)
def test_what_upstream_refuses_is_refused_in_its_words(given: dict[str, object], said: str, tree: SourceTree) -> None:
    (finding,) = found({**RIGHT, **given}, tree)
    assert finding.refused
    assert said in str(finding)


def test_an_engine_that_nobody_has_seen_on_npus_is_a_warning(tree: SourceTree) -> None:
    (finding,) = found({**RIGHT, BACKEND: "nixl"}, tree)
    assert not finding.refused
    assert "nixl" in str(finding)
