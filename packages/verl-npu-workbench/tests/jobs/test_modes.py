"""The rules for the v1 trainer's modes refuse exactly what upstream's own assertions refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from verl_npu_workbench.jobs.modes import mode_findings
from verl_npu_workbench.jobs.settings import Settings

from verl_npu.cli import main
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
        lent = omega_conf_to_dataclass(self.config.trainer.v1.separate_async.lent)
        if probe(lent):
            self.mode = "sync"
        assert self.mode == "sync" or lent.enable, "what a condition that nobody can tell has changed is unknown"
        self._patched()
        if probe(self):
            return
        assert False, "nobody can tell whether it comes to this"
'''
BASE = """
from .buffer import Buffer, AsyncBuffer

class PPOTrainer:
    def __init__(self, config):
        self.config = config
        self.mode = config.trainer.v1.get("trainer_mode")
        self.buffer = self._buffer()
        with opened(config):
            config.trainer.v1.changed = 1
        assert self.config.trainer.v1.changed == 1, "what is not followed may change the configuration"

    if probe():
        def _patched(self):
            assert False, "nobody can tell which of the two it is"
    else:
        def _patched(self):
            pass

    def _buffer(self):
        sampler = self.config.trainer.v1.get("sampler", {})
        made = Buffer if sampler.get("whole", False) else AsyncBuffer
        given = dict(most=sampler.get("most", 8), refill=self._refill)
        if made is Buffer:
            given.update(size=1)
        return made(**given)
"""
BUFFER = """
class Buffer:
    def __init__(self, most, size=None, refill=None, how="drop"):
        self.most, self.refill = most, refill
        self.most = most
        assert isinstance(self.most, int) and self.most > 0, f"at least 1 version, and not {self.most!r}"
        if how not in ["drop", "wait"]:
            raise ValueError(how)
        self._check(size)

    def _check(self, size):
        if size != 1:
            raise ValueError("not one at a time")

class AsyncBuffer(Buffer):
    def _check(self, size):
        pass
"""
LENT = """
@dataclass
class Lent(Config):
    enable: bool = False
    ratio: float = 0.4

    def __post_init__(self):
        if not 0.0 < self.ratio <= 1.0:
            raise ValueError(f"ratio {self.ratio}")
"""
MODE, BACKEND = "trainer.v1.trainer_mode", f"{ROLLOUT}.checkpoint_engine.backend"
MOST_VERSIONS = "trainer.v1.sampler.most"
LENT_RATIO = "trainer.v1.separate_async.lent.ratio"
RIGHT: dict[str, object] = {
    "trainer.use_v1": True,
    "trainer.v1": {},
    MODE: "separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "trainer.v1.separate_async.lent._target_": "verl.trainer.config.Lent",
    LENT_RATIO: 1.0,
    MOST_VERSIONS: 8,
    "trainer.v1.changed": 5,
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
        "verl/trainer/ppo/v1/base.py": BASE,
        "verl/trainer/ppo/v1/buffer.py": BUFFER,
        "verl/trainer/config/__init__.py": "from .config import *",
        "verl/trainer/config/config.py": LENT,
        "verl/trainer/ppo/utils.py": "def need_reward_model(config):\n    return config.reward.reward_model.enable\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree.at(tmp_path, ("verl",))


def found(given: dict[str, object], tree: SourceTree) -> list[Finding]:
    """Return the findings on a script that concern its trainer's mode."""
    right = script(given)
    return list(mode_findings(right.trainer.module, right.settings, tree))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"trainer.use_v1": False, MODE: "any"},
        {f"{ROLLOUT}.nnodes": 3},
        {"trainer.v1.sampler.whole": True},
    ],
)
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
        ({MOST_VERSIONS: 0}, "at least 1 version, and not 0"),
        ({MOST_VERSIONS: "8"}, "at least 1 version, and not '8'"),
        ({LENT_RATIO: 1.5}, "ratio 1.5"),
    ],
)
def test_what_upstream_refuses_is_refused_in_its_words(given: dict[str, object], said: str, tree: SourceTree) -> None:
    (finding,) = found({**RIGHT, **given}, tree)
    assert finding.refused
    assert said in str(finding)


@pytest.mark.parametrize("given", [{MOST_VERSIONS: "${most}"}, {MOST_VERSIONS: "???"}])
def test_nothing_is_said_of_a_value_that_only_the_job_knows(given: dict[str, object], tree: SourceTree) -> None:
    assert found({**RIGHT, **given}, tree) == []


UPSTREAMS = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
SAMPLER, LENDING = "trainer.v1.sampler", "trainer.v1.separate_async.hybrid_rollout"
GROUPS = "algorithm.filter_groups"
COLOCATED, SYNC = {MODE: "colocate_async"}, {MODE: "sync"}
UPSTREAMS_SETTINGS: Mapping[str, object] = {
    MODE: "separate_async",
    "data.train_batch_size": 64,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.nnodes": 1,
    BACKEND: "nccl",
    f"{GROUPS}.metric": "acc",
}
WRONG: list[tuple[dict[str, object], str]] = [
    ({MODE: "seperate_async"}, "no trainer of that name"),
    ({"data.train_batch_size": 32}, "train_batch_size must equal parameter_sync_step * ppo_mini_batch_size"),
    ({"trainer.v1.separate_async.parameter_sync_step": 0}, "train_batch_size must equal"),
    ({f"{ROLLOUT}.nnodes": 0}, "nnodes must be > 0"),
    ({f"{ROLLOUT}.n_gpus_per_node": 0}, "n_gpus_per_node must be > 0"),
    ({BACKEND: "naive"}, "please use nccl"),
    ({"reward.reward_model.enable": True}, "Colocate reward model"),
    ({f"{SAMPLER}.max_off_policy_threshold": 0}, "Invalid max off policy threshold: 0"),
    ({f"{SAMPLER}.max_off_policy_threshold": 1.5}, "Invalid max off policy threshold: 1.5"),
    ({f"{SAMPLER}.max_off_policy_strategy": "evict"}, "Invalid max off policy strategy: evict"),
    ({f"{LENDING}.switch_threshold_ratio": 1.5}, "switch_threshold_ratio must be in (0, 1], got 1.5"),
    ({f"{LENDING}.switch_cost_window_size": 0}, "switch_cost_window_size must be positive"),
    ({f"{LENDING}.enable_switch": True, f"{ROLLOUT}.disaggregation.enabled": True}, "disaggregation"),
    ({f"{GROUPS}.enable": True, f"{GROUPS}.metric": None}, "filter_groups.metric must be set"),
    ({**COLOCATED, f"{GROUPS}.enable": True, "reward.reward_model.enable": True}, "reward metric at sampling time"),
    ({**SYNC, f"{GROUPS}.enable": True, f"{GROUPS}.max_inflight_gen_batches": 0}, "must be a positive integer"),
    ({**COLOCATED, f"{SAMPLER}.max_off_policy_threshold": -1}, "Invalid max off policy threshold: -1"),
]
"""Settings with which verl 0.9.1 was started, and the errors with which it ended."""
TAKEN: list[dict[str, object]] = [
    {},
    COLOCATED,
    SYNC,
    {f"{LENDING}.enable_switch": True},
    {**SYNC, f"{GROUPS}.enable": True},
    {**SYNC, f"{SAMPLER}.sync_refill_failed_groups": True},
    {"trainer.v1.separate_async.num_warmup_batches": -1},
]
"""Settings that verl 0.9.1 accepts: a negative warm-up counts as none."""


def _flat(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        yield f"{prefix}{name}", {} if isinstance(value, dict) else value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")


@pytest.fixture(params=("1dda039b", "v0.9.1"))
def upstream(request: pytest.FixtureRequest) -> tuple[SourceTree, dict[str, object]]:
    """Return a verl with the v1 trainer, and the configuration that it writes out itself."""
    root = UPSTREAMS / f"verl-{request.param}"
    if not root.is_dir():
        pytest.skip("VERL_NPU_UPSTREAMS has no such checkout")
    written = yaml.safe_load((root / "verl/trainer/config/_generated_ppo_trainer.yaml").read_text())
    return SourceTree.at(root, ("verl",)), {**dict(_flat(written)), **UPSTREAMS_SETTINGS}


def _findings_with(given: Mapping[str, object], upstream: tuple[SourceTree, dict[str, object]]) -> list[Finding]:
    tree, settings = upstream
    return list(mode_findings("verl.trainer.main_ppo", Settings({**settings, **given}), tree))


def test_what_upstream_ends_with_is_said_before(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    for given, said in WRONG:
        findings = _findings_with(given, upstream)
        assert [each.refused for each in findings] == [True], given
        assert said in str(findings[0])


def test_what_upstream_takes_is_not_refused(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    assert [_findings_with(given, upstream) for given in TAKEN] == [[]] * len(TAKEN)


TESTS, RECIPES = "tests/special_e2e", "verl/experimental"


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (f"{TESTS}/run_v1_separate_async_ascend.sh", ""),
        (f"{TESTS}/run_v1_separate_async_opd.sh", ""),
        (f"{TESTS}/run_v1_colocate_async_disrm.sh", ""),
        (f"{RECIPES}/fully_async_policy/shell/dapo_30b_a3b_math_fsdp_npu.sh", "parameter_sync_step=2"),
        (f"{RECIPES}/one_step_off_policy/shell/grpo_qwen3_8b_gsm8k_fsdp2_8_8_npu.sh", "parameter_sync_step=1"),
    ],
)
@pytest.mark.usefixtures("sandboxed")
def test_none_of_upstreams_own_scripts_is_refused(script: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = UPSTREAMS / "verl-1dda039b"
    if not tree.is_dir():
        pytest.skip("VERL_NPU_UPSTREAMS has no such checkout")
    monkeypatch.setenv("VERL_USE_UV", "0")
    done = CliRunner().invoke(main, ["lint", "--source", str(tree), str(tree / script)])
    assert (done.exit_code, "refused  " in done.output) == (0, False), done.output
    assert ("Proposal:" in done.output, note in done.output) == (bool(note), True)
