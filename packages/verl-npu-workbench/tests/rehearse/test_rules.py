from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.rehearse.layout import Layout, layout_of
from verl_npu_workbench.rehearse.rules import RULES, Setup, scale

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
REWARD_FUNCTION = "reward.custom_reward_function"
ONE = Layout(npus=2)
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
SEPARATE: Mapping[str, object] = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "separate_async",
    f"{ROLLOUT}.n_gpus_per_node": 8,
}
CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "hidden_size": 128}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return setup_in(tmp_path)


def setup_in(folder: Path, layout: Layout = ONE) -> Setup:
    return Setup(
        folder=folder,
        model=folder / "model",
        train=folder / "train.parquet",
        test=folder / "test.parquet",
        checkpoint=None,
        reward=folder / "reward.py",
        layout=layout,
        steps=2,
        prompt=64,
        response=16,
        engine="virtual",
    )


NEW = object()
"""The value of a setting that a script does not have."""


@dataclass(frozen=True)
class Case:
    """A rule and a script's settings; one that the rule changes has its values before and after."""

    rule: str
    settings: Mapping[str, object]
    setup: Mapping[str, object] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, object]:
        pairs = {key: value[0] if isinstance(value, tuple) else value for key, value in self.settings.items()}
        return {key: value for key, value in pairs.items() if value is not NEW}

    def expected(self, folder: Path) -> dict[str, object]:
        """Return what the rule changes; `{folder}` is the run's own."""
        after = {key: value[1] for key, value in self.settings.items() if isinstance(value, tuple)}
        return {
            key: each.replace("{folder}", str(folder)) if isinstance(each, str) else each
            for key, each in after.items()
        }


CASES = [
    Case(
        "model",
        {
            "actor_rollout_ref.model.path": ("~/Qwen2.5-7B", "{folder}/model"),
            "critic.model.tokenizer_path": ("~/Qwen2.5-7B", "{folder}/model"),
            "model.partial_pretrain": ("Qwen/Qwen3-8B", "{folder}/model"),
            "reward_model.model.path": ("RM", "{folder}/model"),
            "actor_rollout_ref.model.lora_adapter_path": ("/lora", None),
            "actor_rollout_ref.model.hf_config_path": None,
        },
    ),
    Case(
        "shapes",
        {
            f"{ACTOR}.megatron.override_transformer_config.num_query_groups": (8, 2),
            f"{ACTOR}.megatron.override_transformer_config.num_layers": None,
            f"{ACTOR}.megatron.override_transformer_config.v_head_dim": 128,
        },
    ),
    Case(
        "distributed checkpoint",
        {f"{ACTOR}.megatron.use_dist_checkpointing": (True, False), f"{ACTOR}.megatron.use_mbridge": (False, True)},
    ),
    Case(
        "distributed checkpoint",
        {
            f"{ACTOR}.megatron.use_dist_checkpointing": True,
            f"{ACTOR}.megatron.dist_checkpointing_path": ("/full", "/small"),
        },
        {"checkpoint": Path("/small")},
    ),
    Case(
        "data",
        {
            "data.train_files": (["/a", "/b"], "{folder}/train.parquet"),
            "data.val_files": ("/c", "{folder}/test.parquet"),
            "data.train_max_samples": (4, -1),
            "data.val_max_samples": -1,
        },
    ),
    Case(
        "reward",
        {
            "algorithm.adv_estimator": "grpo",
            "custom_reward_function.path": (None, "{folder}/reward.py"),
            "custom_reward_function.name": ("own", "grade"),
        },
    ),
    # From v0.9.0 on main_ppo does not read the older section, which is still there.
    Case(
        "reward",
        {
            "algorithm.adv_estimator": "grpo",
            "custom_reward_function.path": (None, "{folder}/reward.py"),
            f"{REWARD_FUNCTION}.path": (None, "{folder}/reward.py"),
            "custom_reward_function.name": (NEW, "grade"),
            f"{REWARD_FUNCTION}.name": (NEW, "grade"),
        },
    ),
    Case(
        "lengths",
        {
            "data.max_prompt_length": (2048, 64),
            "data.max_response_length": 8,
            "data.max_length": (4096, 80),
            f"{ROLLOUT}.prompt_length": (1024, 64),
        },
    ),
    Case(
        "token budgets",
        {
            "data.max_prompt_length": 1024,
            "data.max_response_length": 3072,
            f"{ACTOR}.ppo_max_token_len_per_gpu": (8192, 160),
            f"{ROLLOUT}.max_num_batched_tokens": (1024, 80),
            f"{ROLLOUT}.max_num_seqs": (256, 80),
            "reward_model.rollout.max_num_seqs": 256,
            f"{ROLLOUT}.max_model_len": None,
            f"{ACTOR}.megatron.override_transformer_config.seq_length": (4096, 80),
            "critic.megatron.override_transformer_config.seq_length": 2048,
            "critic.megatron.override_transformer_config.multi_head_latent_attention": True,
        },
    ),
    Case("overlong buffer", {"data.max_response_length": 4096, "reward_model.overlong_buffer.len": (1024, 4)}),
    Case(
        "batches", {"data.train_batch_size": (512, 8), "data.gen_batch_size": (1536, 24), "data.val_batch_size": None}
    ),
    # The v1 trainer asserts that a batch holds the mini batches between two syncs.
    Case("batches", {**SEPARATE, "data.train_batch_size": (96, 12), SYNC_STEP: 3}),
    Case("batches", {**SEPARATE, "data.train_batch_size": (512, 8), SYNC_STEP: (32, 4), f"{ROLLOUT}.n": 1}),
    Case("samples", {f"{ROLLOUT}.n": (16, 4), f"{ROLLOUT}.val_kwargs.n": 2}),
    Case(
        "mini batches",
        {
            "data.train_batch_size": 512,
            f"{ACTOR}.ppo_mini_batch_size": (128, 2),
            "critic.ppo_mini_batch_size": (512, 8),
        },
    ),
    Case(
        "micro batches",
        {
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": (8, 2),
            f"{REF}.log_prob_micro_batch_size": (256, 4),
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1,
            f"{ACTOR}.ppo_micro_batch_size": None,
        },
    ),
    Case(
        "NPUs",
        {
            "trainer.n_gpus_per_node": (16, 2),
            "trainer.nnodes": (4, 1),
            "rollout.n_gpus_per_node": (8, 1),
            "rollout.nnodes": (2, 1),
            "reward_model.enable_resource_pool": True,
            "reward_model.n_gpus_per_node": (8, 1),
        },
        {"layout": replace(ONE, rollout_npus=1)},
    ),
    Case(
        "NPUs",
        {
            **SEPARATE,
            "trainer.n_gpus_per_node": (8, 2),
            "trainer.nnodes": (2, 1),
            f"{ROLLOUT}.nnodes": (4, 1),
            f"{ROLLOUT}.n_gpus_per_node": (8, 1),
        },
        {"layout": replace(ONE, rollout_npus=1)},
    ),
    Case(
        "parallel sizes",
        {
            f"{ACTOR}.megatron.tensor_model_parallel_size": (8, 2),
            f"{ACTOR}.megatron.expert_tensor_parallel_size": (None, 1),
            f"{ACTOR}.megatron.expert_model_parallel_size": (8, 2),
            f"{REF}.megatron.tensor_model_parallel_size": 1,
            f"{ROLLOUT}.tensor_model_parallel_size": (4, 2),
            f"{ROLLOUT}.data_parallel_size": 1,
            f"{ACTOR}.fsdp_config.fsdp_size": (32, -1),
            "reward.reward_model.rollout.tensor_model_parallel_size": (4, 1),
        },
        {"layout": replace(ONE, tensor=2, expert=2, rollout_tensor=2)},
    ),
    # MindSpeed patches for an override that is 1, and not for one that is missing.
    Case(
        "parallel sizes",
        {
            f"{ACTOR}.megatron.context_parallel_size": (8, 1),
            f"{ACTOR}.megatron.override_transformer_config.context_parallel_size": (8, 1),
            f"{REF}.megatron.context_parallel_size": (8, 1),
            f"{REF}.megatron.override_transformer_config.context_parallel_size": (NEW, 1),
        },
    ),
    Case(
        "pipeline stages",
        {
            f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": (2, None),
            f"{ACTOR}.megatron.override_transformer_config.num_layers_in_last_pipeline_stage": (11, None),
            f"{ACTOR}.megatron.override_transformer_config.recompute_num_layers": (4, 1),
            f"{REF}.megatron.virtual_pipeline_model_parallel_size": None,
        },
    ),
    Case("Ray", {"ray_kwargs.ray_init.num_cpus": (None, 64), "ray_kwargs.ray_init.include_dashboard": (NEW, False)}),
    Case("Ray", {"ray_init.num_cpus": (None, 64)}),
    Case(
        "helper processes",
        {f"{ROLLOUT}.agent.num_workers": (8, 1), "reward.num_workers": 1, "data.dataloader_num_workers": (8, 0)},
    ),
    Case(
        "steps",
        {
            "trainer.total_training_steps": (None, 2),
            "trainer.v1.separate_async.num_warmup_batches": (8, 2),
            "trainer.total_epochs": (NEW, 1),
        },
    ),
    Case(
        "steps",
        {
            "trainer.total_training_steps": (None, 2),
            "trainer.total_epochs": 15,
            "rollout.total_rollout_steps": (51200, 4 * 2 * 2 * 2),
            "async_training.require_batches": (4, 2),
            "async_training.trigger_parameter_sync_step": (8, 2),
            f"{ACTOR}.ppo_mini_batch_size": 4,
        },
    ),
    Case(
        "warm-up",
        {
            f"{ACTOR}.optim.lr_warmup_steps": (10, 1),
            "critic.optim.lr_warmup_steps": -1,
            "trainer.critic_warmup": (5, 1),
        },
    ),
    Case("validation", {"trainer.test_freq": (5, 2)}),
    Case(
        "checkpoints",
        {
            "trainer.default_local_dir": ("checkpoints/x", "{folder}/checkpoints"),
            "trainer.save_freq": (20, 2),
            "trainer.default_hdfs_dir": ("hdfs://x", None),
            "trainer.resume_mode": ("resume_path", "disable"),
            "trainer.resume_from_path": ("/x", None),
            "trainer.rollout_data_dir": ("/y", "{folder}/rollout_data_dir"),
            "skip.rollout_tq.dump_dir": ("~/z", "{folder}/dumps"),
        },
    ),
    Case("logger", {"trainer.logger": (["console", "wandb"], ["console"])}),
    Case(
        "profiler",
        {
            "global_profiler.save_path": ("/x", "{folder}/profile"),
            "global_profiler.steps": ([5, 6], [1]),
            f"{ACTOR}.profiler.save_path": None,
        },
    ),
    Case("rollout engine", {f"{ROLLOUT}.name": ("vllm", "virtual"), "reward_model.rollout.name": "???"}),
    Case(
        "sleep mode",
        {f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": (NEW, False)},
        {"engine": "", "no_sleep": True},
    ),
    Case(
        "rollout ranks",
        {f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.tensor_model_parallel_size": (2, 1)},
        {"engine": "", "no_sleep": True, "layout": replace(ONE, rollout_tensor=2)},
    ),
    Case(
        "quantization and drafts",
        {f"{ROLLOUT}.quantization": ("ascend", None), f"{ROLLOUT}.mtp.enable": (True, False)},
    ),
    Case(
        "weight buckets",
        {
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": (2048, 64),
            "x.update_weights_bucket_megabytes": 32,
        },
    ),
]
NAMES = [f"{case.rule} {index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_rule_changes_what_it_says_and_nothing_else(case: Case, setup: Setup) -> None:
    changes, after = scale(Settings(case.given), replace(setup, **case.setup))
    its = {change.key: change.after for change in changes if change.rule == case.rule}
    expected = case.expected(setup.folder)
    assert its == expected
    assert {key: after.get(key) for key in expected} == expected


def test_without_a_rule_its_settings_stay(setup: Setup) -> None:
    given = {"data.train_batch_size": 512, "data.max_prompt_length": 2048}
    _, after = scale(Settings(given), setup, without=("lengths",))
    assert (after.get("data.max_prompt_length"), after.get("data.train_batch_size")) == (2048, 8)


def test_every_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES if rule.name not in {case.rule for case in CASES}] == []


def test_names_are_unique_and_reasons_are_sentences() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.name for rule in RULES if not re.fullmatch(r"[A-Z0-9].+\.", rule.reason)] == []


def test_what_is_small_already_is_not_changed(setup: Setup) -> None:
    small = {
        "data.train_batch_size": 4,
        f"{ROLLOUT}.n": 2,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.logger": ["console"],
    }
    changes, _ = scale(Settings(small), setup)
    assert {change.key for change in changes} & set(small) == set()


def test_a_change_tells_what_was_there_before(setup: Setup) -> None:
    changes, _ = scale(Settings({"data.train_batch_size": 512}), setup)
    (change,) = [change for change in changes if change.rule == "batches"]
    assert (change.before, change.after) == (512, 8)


def test_sequence_parallel_ranks_share_a_budget(tmp_path: Path) -> None:
    given = {"data.max_prompt_length": 1024, "data.max_response_length": 3072, "x.ppo_max_token_len_per_gpu": 2048}
    _, after = scale(Settings(given), setup_with_model(tmp_path, replace(ONE, sequence=2)))
    assert after.get("x.ppo_max_token_len_per_gpu") == 40


def setup_with_model(folder: Path, layout: Layout) -> Setup:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    return setup_in(folder, layout)


power = st.integers(0, 5).map(lambda exponent: 2**exponent)


@given(
    npus=st.sampled_from([None, 1, 2, 3, 4, 6, 8]),
    train=st.integers(1, 2048),
    share=st.integers(1, 64),
    micro=st.integers(1, 16),
    samples=st.integers(1, 32),
    sizes=st.tuples(power, power, power, power),
    lengths=st.tuples(st.integers(1, 40000), st.integers(1, 40000)),
    budget=st.integers(1, 10**6),
    steps=st.integers(1, 5),
)
def test_scaled_batches_can_always_be_divided(
    tmp_path_factory: pytest.TempPathFactory,
    npus: int | None,
    train: int,
    share: int,
    micro: int,
    samples: int,
    sizes: tuple[int, int, int, int],
    lengths: tuple[int, int],
    budget: int,
    steps: int,
) -> None:
    tensor, pipeline, sequence, rollout = sizes
    script = Settings(
        {
            "algorithm.adv_estimator": "grpo",
            "data.train_batch_size": train,
            "data.max_prompt_length": lengths[0],
            "data.max_response_length": lengths[1],
            f"{ROLLOUT}.n": samples,
            f"{ROLLOUT}.tensor_model_parallel_size": rollout,
            f"{ACTOR}.ppo_mini_batch_size": max(1, train // share),
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro,
            f"{ACTOR}.ppo_max_token_len_per_gpu": budget,
            f"{ACTOR}.megatron.tensor_model_parallel_size": tensor,
            f"{ACTOR}.megatron.pipeline_model_parallel_size": pipeline,
            f"{ACTOR}.ulysses_sequence_parallel_size": sequence,
            f"{ACTOR}.optim.lr_warmup_steps": 10,
        }
    )
    layout = layout_of(script, npus, torchrun=False)
    folder = tmp_path_factory.getbasetemp()
    _, after = scale(script, replace(setup_with_model(folder, layout), steps=steps))
    batch, n, mini = (
        after.whole(key) for key in ("data.train_batch_size", f"{ROLLOUT}.n", f"{ACTOR}.ppo_mini_batch_size")
    )
    assert mini * n % layout.data == 0
    assert batch * n % layout.data == 0
    assert 1 <= mini <= batch
    assert mini * n // layout.data % after.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") == 0
    longest = after.whole("data.max_prompt_length") + after.whole("data.max_response_length")
    assert after.whole(f"{ACTOR}.ppo_max_token_len_per_gpu") * layout.sequence >= longest
    assert after.whole(f"{ACTOR}.optim.lr_warmup_steps") < steps
    assert layout.npus % (layout.tensor * layout.pipeline * layout.sequence) == 0
    assert layout.npus % layout.rollout_tensor == 0
