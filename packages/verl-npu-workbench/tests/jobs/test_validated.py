"""Settings that verl's own code refuses or accepts, with the installed verl and with others."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from verl_npu_workbench.jobs import validated
from verl_npu_workbench.jobs.rules import findings
from verl_npu_workbench.jobs.settings import Settings

from verl_npu.findings import Finding
from verl_npu.registry.source.tree import SourceTree

from .test_modes import _flat
from .test_rules import ACTOR, ROLLOUT, script
from .test_rules import _verl as verl

REFERENCE, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
UPSTREAMS = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
CODES = {"batches", "choices", "empty", "validation"}
GOOD: Mapping[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.rollout_n": 4,
    f"{REFERENCE}.log_prob_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    "critic.use_dynamic_bsz": False,
    "critic.ppo_micro_batch_size_per_gpu": 4,
    "critic.ppo_mini_batch_size": 16,
    "critic.rollout_n": 4,
}
GAE = {"algorithm.adv_estimator": "gae"}
DYNAMIC = {f"{ACTOR}.use_dynamic_bsz": True}
IN_REWARD = {"algorithm.use_kl_in_reward": True}
TWO_RANKS_A_SEQUENCE = {f"{ACTOR}.ulysses_sequence_parallel_size": 2}
SAMPLED = {f"{ROLLOUT}.val_kwargs.do_sample": True}
TAKEN: Mapping[str, Mapping[str, object]] = {
    "as it is": {},
    "a critic": GAE,
    "another estimator": {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    "another loss": {f"{ACTOR}.policy_loss.loss_mode": "gspo"},
    "another way to sum a loss": {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"},
    "another penalty": {f"{ACTOR}.kl_loss_type": "k3"},
    "a penalty that nothing computes": {f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.kl_loss_type": "none"},
    "an estimator that a library of the user's registers": {
        "algorithm.adv_estimator": "mine",
        f"{MODEL}.external_lib": "my.estimators",
    },
    "a loss that a library of the user's registers": {
        f"{ACTOR}.policy_loss.loss_mode": "mine",
        f"{MODEL}.external_lib": "my.losses",
    },
    "another data type": {f"{ACTOR}.fsdp_config.model_dtype": "bf16"},
    "no data type": {f"{ACTOR}.fsdp_config.model_dtype": None},
    "experts over all of a replica": {f"{ROLLOUT}.expert_parallel_size": 2},
    "a mini batch above a dynamic batch": {**DYNAMIC, f"{ACTOR}.ppo_mini_batch_size": 128},
    "no micro-batch of a dynamic batch": {**DYNAMIC, f"{ACTOR}.ppo_micro_batch_size_per_gpu": None},
    "no micro-batch of a reference that there is not": {
        f"{ACTOR}.use_kl_loss": False,
        f"{REFERENCE}.log_prob_micro_batch_size_per_gpu": None,
    },
    "greedy validation": {f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.val_kwargs.do_sample": False},
    "sequences over ranks without padding": {**TWO_RANKS_A_SEQUENCE, f"{MODEL}.use_remove_padding": True},
    "a mini batch over ranks that share sequences": {
        **TWO_RANKS_A_SEQUENCE,
        f"{MODEL}.use_remove_padding": True,
        f"{ACTOR}.ppo_mini_batch_size": 4,
        f"{ROLLOUT}.n": 1,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    },
    "an adapter": {f"{MODEL}.lora_rank": 512},
    "several loggers": {"trainer.logger": ["console", "tensorboard"]},
    "a logger and a strategy that only the job knows": {
        "trainer.logger": ["console", "${oc.env:LOGGER}"],
        f"{ACTOR}.strategy": "${oc.env:STRATEGY}",
    },
    "a controller": {**IN_REWARD, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 100},
    "a size that only the job knows": {f"{ACTOR}.ppo_micro_batch_size_per_gpu": "${other}"},
}
REFUSED: Mapping[str, tuple[Mapping[str, object], str, str]] = {
    "an estimator misspelt": ({"algorithm.adv_estimator": "gpro"}, "choices", "Unknown advantage estimator"),
    "an engine misspelt": ({f"{ROLLOUT}.name": "vlm"}, "choices", "Rollout vlm with mode"),
    "a negative learning rate": ({f"{ACTOR}.optim.lr": -1e-6}, "validation", "Invalid learning rate: -1e-06"),
    "a text as a frequency": ({"trainer.save_freq": "10steps"}, "validation", "TypeError: '>' not supported"),
    "a bound below 1": (
        {f"{ACTOR}.clip_ratio_c": 0.5},
        "validation",
        "should be greater than 1.0, but get the value: 0.5",
    ),
    "an optimizer misspelt": (
        {f"{ACTOR}.optim.optimizer": "AdamWW", f"{ACTOR}.optim.optimizer_impl": "torch.optim"},
        "validation",
        "torch.optim has no attribute AdamWW, but Adam",
    ),
    "a group of 3 ranks": (
        {f"{ACTOR}.fsdp_config.fsdp_size": 3},
        "validation",
        "the device mesh (2, 3) does not match the 8 ranks",
    ),
    "an agent loop misspelt": (
        {f"{ROLLOUT}.agent.default_agent_loop": "agnt"},
        "validation",
        "loop agnt not registered",
    ),
    "a penalty misspelt": ({f"{ACTOR}.kl_loss_type": "low_var"}, "choices", "NotImplementedError"),
    "a penalty of the reward misspelt": ({**IN_REWARD, "algorithm.kl_penalty": "k"}, "choices", "NotImplementedError"),
    "a loss misspelt": ({f"{ACTOR}.policy_loss.loss_mode": "gsop"}, "choices", "Unsupported loss mode: gsop"),
    "a logger misspelt": ({"trainer.logger": ["console", "wanb"]}, "choices", "wanb is not supported"),
    "a controller misspelt": ({**IN_REWARD, "algorithm.kl_ctrl.type": "adapt"}, "choices", "NotImplementedError"),
    "a data type misspelt": ({f"{ACTOR}.fsdp_config.model_dtype": "float17"}, "choices", "float17"),
    "a reference's data type misspelt": ({f"{REFERENCE}.fsdp_config.model_dtype": "bf"}, "choices", "precision: bf"),
    "a way to sum a loss misspelt": ({f"{ACTOR}.loss_agg_mode": "mean"}, "validation", "Invalid loss_agg_mode: mean"),
    "experts over 3": ({f"{ROLLOUT}.expert_parallel_size": 3}, "validation", "expert_parallel_size must be equal"),
    "no NPUs": ({"trainer.n_gpus_per_node": 0}, "validation", "ZeroDivisionError"),
    "answers of 1k tokens": ({f"{ROLLOUT}.response_length": "1k"}, "empty", "the text '1k' instead of a number"),
    "a mini batch above the batch": (
        {"data.train_batch_size": 8},
        "validation",
        "must be >= actor.ppo_mini_batch_size",
    ),
    "a critic whose engine is not its own": (
        {**GAE, "critic.strategy": "megatron"},
        "validation",
        "Config' object has no attribute",
    ),
    "a critic's mini batch above the batch": (
        {**GAE, "critic.ppo_mini_batch_size": 128},
        "validation",
        "must be >= critic.ppo_mini_batch_size",
    ),
    "a batch that does not divide": (
        {"data.train_batch_size": 65, f"{ROLLOUT}.n": 1},
        "validation",
        "real_train_batch_size (65) must be divisible",
    ),
    "no micro-batch of the rollout": (
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": None},
        "validation",
        "Please set at least one of 'actor_rollout_ref.rollout",
    ),
    "no micro-batch of the reference": (
        {f"{REFERENCE}.log_prob_micro_batch_size_per_gpu": None},
        "validation",
        "Please set at least one of 'actor_rollout_ref.ref",
    ),
    "two micro-batches": ({f"{ROLLOUT}.log_prob_micro_batch_size": 8}, "validation", "You have set both"),
    "a critic without a micro-batch": (
        {**GAE, "critic.ppo_micro_batch_size_per_gpu": None},
        "validation",
        "[critic] Please set at least one",
    ),
    "samples at no temperature": ({**SAMPLED, f"{ROLLOUT}.temperature": 0}, "validation", "should be greater than 0"),
    "sequences over ranks with their padding": (
        {**TWO_RANKS_A_SEQUENCE, f"{MODEL}.use_remove_padding": False},
        "validation",
        "you must enable `use_remove_padding`",
    ),
    "a field that an actor lacks": (
        {f"{ACTOR}.clip_high": 0.28},
        "validation",
        "unexpected keyword argument 'clip_high'",
    ),
    "a field that a part of an actor lacks": (
        {f"{ACTOR}.fsdp_config.cpu_offload": True},
        "validation",
        "unexpected keyword argument 'cpu_offload'",
    ),
    "a format of tools misspelt": (
        {f"{ROLLOUT}.agent.default_agent_loop": "tool_agent", f"{ROLLOUT}.multi_turn.format": "hermess"},
        "choices",
        "Unknown tool parser: hermess",
    ),
    "a rollout that does not divide the NPUs": (
        {f"{ROLLOUT}.tensor_model_parallel_size": 3},
        "validation",
        "is not divisible by",
    ),
    "a checkpoint to continue from that is not named": (
        {"trainer.resume_mode": "resume_path"},
        "validation",
        "resume ckpt must be str type",
    ),
    "a checkpoint that is none of a step": (
        {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/checkpoints/actor"},
        "validation",
        "resume ckpt must specify the global_steps",
    ),
    "a field that a model lacks": ({f"{MODEL}.gradient_checkpoint": True}, "validation", "'gradient_checkpoint'"),
    "a file of data without a name": ({"data.val_files": [""]}, "validation", "data.val_files"),
    "a rate of an estimator that is a word": ({"algorithm.gamma": "one"}, "empty", "the text 'one'"),
    "micro-batches that do not divide a rank's share": (
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5},
        "batches",
        "divisible by",
    ),
    "a mini batch of fewer samples than ranks": (
        {f"{ACTOR}.ppo_mini_batch_size": 1},
        "batches",
        "mini_batch_size",
    ),
}


def _roots() -> list[Path]:
    installed = importlib.util.find_spec("verl")
    places = installed.submodule_search_locations if installed is not None else None
    checkouts = (UPSTREAMS / f"verl-{pin}" for pin in ("v0.6.1", "v0.9.0", "1dda039b"))
    return [*(Path(place).parent for place in places or ()), *(each for each in checkouts if each.is_dir())]


@pytest.fixture(scope="module", params=_roots(), ids=lambda root: root.name)
def upstream(request: pytest.FixtureRequest) -> tuple[SourceTree, dict[str, object]]:
    """Return a verl, and the configuration that it writes out itself."""
    written = yaml.safe_load((request.param / "verl/trainer/config/_generated_ppo_trainer.yaml").read_text())
    return SourceTree.at(request.param, ("verl",)), dict(_flat(written))


def found(
    upstream: tuple[SourceTree, dict[str, object]], given: Mapping[str, object], module: str = "verl.trainer.main_ppo"
) -> list[Finding]:
    """Return the findings of verl's own code on a good script with other settings."""
    sources, written = upstream
    judged = findings(script({**written, **GOOD, **given}, sources=sources, module=module))
    return [each for each in judged if each.code in CODES]


def test_what_verl_takes_is_not_refused(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    said = {name: found(upstream, given) for name, given in TAKEN.items()}
    assert {name: findings for name, findings in said.items() if findings} == {}


def test_what_verl_refuses_is_refused_in_its_words(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    said = {name: found(upstream, given) for name, (given, _, _) in REFUSED.items()}
    missed = {
        name: [str(each) for each in said[name]]
        for name, (_, code, words) in REFUSED.items()
        if not any(each.refused and each.code == code and words in str(each) for each in said[name])
    }
    assert missed == {}


def test_a_teacher_without_npus_is_refused(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    if "distillation.enabled" not in upstream[1]:
        pytest.skip("this verl has no teachers")
    (finding,) = found(upstream, {"distillation.enabled": True})
    assert finding.refused
    assert "config.distillation.nnodes must be greater than 0" in str(finding)


@pytest.fixture(scope="module")
def earlier() -> tuple[SourceTree, dict[str, object]]:
    """Return verl v0.7.1, whose program moves old keys and whose servers check their settings at their start."""
    root = UPSTREAMS / "verl-v0.7.1"
    if not root.is_dir():
        pytest.skip("VERL_NPU_UPSTREAMS has no such checkout")
    written = yaml.safe_load((root / "verl/trainer/config/_generated_ppo_trainer.yaml").read_text())
    return SourceTree.at(root, ("verl",)), dict(_flat(written))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reward_model.reward_manager": "dapoo"}, "Unknown reward manager: dapoo"),
        ({f"{ROLLOUT}.quantization": "fp88", f"{ROLLOUT}.qat": {"enable": False}}, "quantization, got: fp88"),
        ({"trainer.save_freq": "10steps"}, "TypeError: '>' not supported"),
        (
            {"reward.reward_model.enable_resource_pool": True, "reward.reward_model.n_gpus_per_node": 0},
            "config.reward.reward_model.n_gpus_per_node must be greater than 0",
        ),
    ],
)
def test_what_an_earlier_verl_refuses_is_refused(
    given: Mapping[str, object], said: str, earlier: tuple[SourceTree, dict[str, object]]
) -> None:
    assert any(each.refused and said in str(each) for each in found(earlier, given))


@pytest.mark.parametrize("given", [{"reward_model.reward_manager": "dapo"}, {"trainer.resume_mode": "last"}])
def test_what_an_earlier_verl_may_take_is_not_refused(
    given: Mapping[str, object], earlier: tuple[SourceTree, dict[str, object]]
) -> None:
    assert found(earlier, given) == []


MAIN = "import hydra\n\n@hydra.main()\ndef main(config):\n    "
OTHER = f"from verl.moves import move\n{MAIN}move(config)"
MOVES = "def move(config):\n    return config.old.get('path')"
UNREAD: Mapping[str, tuple[Mapping[str, str], list[str]]] = {
    "by another program": ({}, ["verl.other"]),
    "by itself": ({"trainer__main_ppo": OTHER}, []),
    "by what others may call": ({"moves": f"{MOVES}\n\ndef moved(config):\n    move(config)"}, []),
    "by another part": ({"part": "class Part:\n    def run(self):\n        return self.config['old']"}, []),
    "by another name": ({"part": "class Part:\n    def run(self, main_cfg):\n        return main_cfg.old"}, []),
    "in another section": ({"part": "def run(config):\n    return config.new.old"}, ["verl.other"]),
    "by nothing": ({"moves": "def move(config): ..."}, []),
}


@pytest.mark.parametrize(("files", "said"), UNREAD.values(), ids=UNREAD.keys())
def test_a_section_may_be_read_by_other_programs_only(files: Mapping[str, str], said: list[str]) -> None:
    tree = verl(**{"trainer__main_ppo": f"{MAIN}config.new", "other": OTHER, "moves": MOVES, **files})
    (Path(tree.place_of("verl")) / "trainer" / "__init__.py").write_text("from verl.moves import move")
    assert validated.other_readers("old", "verl.trainer.main_ppo", tree) == said


def test_a_key_that_only_another_program_reads_is_warned() -> None:
    root = UPSTREAMS / "verl-v0.9.0"
    if not root.is_dir():
        pytest.skip("no checkout of verl v0.9.0")
    overrides = ("reward_model.reward_manager=dapo", "custom_reward_function.path=a.py", "data.train_batch_size=64")
    given = {"reward.custom_reward_function.path": None}
    judged = findings(script(given, overrides=overrides, sources=SourceTree.at(root, ("verl",))))
    said = [(each.subject, each.refused, "set reward.custom" in each.fix) for each in judged if each.code == "unread"]
    assert said == [("reward_model.reward_manager", False, False), ("custom_reward_function.path", False, True)]


def test_a_strategy_that_neither_the_program_nor_an_engine_knows_is_refused(
    upstream: tuple[SourceTree, dict[str, object]],
) -> None:
    assert found(upstream, {f"{ACTOR}.strategy": "fsdp3"}) != []
    assert found(upstream, {f"{ACTOR}.strategy": "fsdp2"}) == []


def test_micro_batches_of_all_ranks_together_are_refused_by_the_workers_with_engines(
    upstream: tuple[SourceTree, dict[str, object]],
) -> None:
    together = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": None, f"{ACTOR}.ppo_micro_batch_size": 16}
    asserts = b"ppo_micro_batch_size_per_gpu is not None" in (upstream[0].read("verl.workers.engine_workers") or b"")
    assert bool(found(upstream, together)) is asserts


def test_a_trainer_that_streams_samples_needs_no_batches(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    streams = "verl.experimental.fully_async_policy.fully_async_main"
    assert found(upstream, {"data.train_batch_size": 0}, streams) == []


def test_a_checkpoint_engine_is_looked_up_where_verl_registers_them(
    upstream: tuple[SourceTree, dict[str, object]],
) -> None:
    key = f"{ROLLOUT}.checkpoint_engine"
    if f"{key}.backend" not in upstream[1]:
        pytest.skip("this verl has no checkpoint engines")
    (finding,) = found(upstream, {f"{key}.backend": "hcll"})
    assert (finding.code, finding.refused) == ("choices", True)
    assert "Checkpoint engine hcll not registered" in str(finding)
    assert found(upstream, {f"{key}.backend": "kimi_ckpt_engine"}) == []
    assert found(upstream, {f"{key}.backend": "mine", f"{key}.custom_backend_module": "my.engines"}) == []


@pytest.mark.parametrize("key", [f"{ROLLOUT}.n", "data.train_batch_size"])
def test_a_size_of_zero_is_refused(key: str, upstream: tuple[SourceTree, dict[str, object]]) -> None:
    assert any(each.refused for each in found(upstream, {key: 0}))


def test_an_engine_of_a_critic_reads_no_micro_batch(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    refused = found(upstream, {**GAE, "critic.ppo_micro_batch_size_per_gpu": 5})
    assert bool(refused) is validated._is_legacy(Settings(upstream[1]), upstream[0])


@pytest.mark.parametrize(
    ("module", "code"), [("verl.trainer.main_ppo", "validation"), ("recipe.dapo.main_dapo", "rollout.ranks")]
)
def test_a_rollout_that_does_not_divide_the_npus_is_refused_once(
    module: str, code: str, upstream: tuple[SourceTree, dict[str, object]]
) -> None:
    sources, written = upstream
    given = {**written, **GOOD, f"{ROLLOUT}.tensor_model_parallel_size": 3, "trainer.device": "npu"}
    # These refer to other settings, which nothing resolves here.
    given |= {key: 0 for key in (f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node") if key in given}
    right = script(given, sources=sources, module=module)
    # Sections come before their settings, as Hydra composes them.
    ordered = sorted(right.settings.values.items(), key=lambda pair: pair[1] != {})
    judged = findings(replace(right, settings=Settings(dict(ordered))))
    assert [each.code for each in judged if each.refused] == [code]


def test_a_recipe_that_does_not_validate_is_warned(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    (finding,) = found(upstream, {"data.train_batch_size": 8}, module="recipe.dapo.main_dapo")
    assert (finding.code, finding.refused) == ("validation", False)


@pytest.mark.parametrize(("module", "refused"), [("verl.utils.config", True), ("recipe.utils", False)])
def test_a_recipe_that_validates_as_upstream_does_is_refused(
    module: str, refused: bool, upstream: tuple[SourceTree, dict[str, object]], tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(f"from {module} import validate_config\n\nvalidate_config(config)")
    sources, written = upstream
    given = script({**written, **GOOD, f"{ACTOR}.loss_agg_mode": "mean"}, sources=sources, module="recipe.main")
    judged = replace(given, trainer=replace(given.trainer, recipes=tmp_path))
    said = [each for each in findings(judged) if "Invalid loss_agg_mode" in str(each)]
    assert [each.refused for each in said] == [refused]


def test_two_wrong_values_of_one_kind_are_both_refused(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    keys = [f"{ACTOR}.fsdp_config.model_dtype", f"{REFERENCE}.fsdp_config.model_dtype"]
    assert [each.subject for each in found(upstream, dict.fromkeys(keys, "bf"))] == keys


def test_a_recipe_may_train_no_critic_whatever_its_estimator(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    wrong = {**GAE, "critic.enable": None, "critic.ppo_micro_batch_size_per_gpu": None}
    assert [each.refused for each in found(upstream, wrong, module="recipe.spin.main_spin")] in ([], [False])


def test_a_program_that_only_generates_validates_nothing(upstream: tuple[SourceTree, dict[str, object]]) -> None:
    wrong = {f"{ACTOR}.loss_agg_mode": "mean", "algorithm.adv_estimator": "gpro"}
    assert found(upstream, wrong, module="verl.trainer.main_generation_server") == []


def test_a_recipe_may_register_a_name_of_its_own(
    upstream: tuple[SourceTree, dict[str, object]], tmp_path: Path
) -> None:
    reward = tmp_path / "reward.py"
    given = {"algorithm.adv_estimator": "mine", "custom_reward_function.path": str(reward)}
    reward.write_text("def compute_score(): ...")
    assert [each.code for each in found(upstream, given)] == ["choices"]
    reward.write_text('@register_adv_est("mine")\ndef estimate(): ...\ndef compute_score(): ...')
    assert found(upstream, given) == []
