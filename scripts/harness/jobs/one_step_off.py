"""GRPO one step off policy: trainer and rollout on separate NPUs, async vLLM, and weights synced after each step."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.jobs import grpo, megatron
from harness.jobs.base import Job, Plan

PROMPTS = 8
ANSWERS = 4


def _settings(plan: Plan, trainers: int) -> dict[str, object]:
    micro = PROMPTS * ANSWERS // 2 if plan.generated else 4
    chosen: dict[str, object] = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": plan.train,
        "data.val_files": plan.test,
        "data.max_prompt_length": 64 if plan.generated else 512,
        "data.max_response_length": 16 if plan.generated else 256,
        "data.filter_overlong_prompts": not plan.generated,
        "++data.seed": plan.seed,
        "actor_rollout_ref.hybrid_engine": False,
        "actor_rollout_ref.model.path": plan.model,
        "actor_rollout_ref.actor.optim.lr": 5e-3 if plan.generated else 1e-6,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.actor.checkpoint.save_contents": "[model,hf_model]",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.mode": "async",
        "actor_rollout_ref.rollout.n": ANSWERS,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.rollout.enforce_eager": True,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4,
        "actor_rollout_ref.rollout.max_num_batched_tokens": 1024 if plan.generated else 8192,
        "actor_rollout_ref.rollout.max_model_len": 512 if plan.generated else 2048,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": trainers,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": plan.npus - trainers,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": plan.run_dir / "checkpoints",
        # The recipes' own actors ask for ten CPUs each.
        f"{plan.pin.ray_init}.num_cpus": 64,
        # The recipes look for verl's configuration below their working directory.
        "hydra.searchpath": f"[file://{plan.checkout}/verl/trainer/config]",
    }
    if plan.virtual and plan.rollout == pins.SMALL:
        # vLLM's CPU engine has no sleep mode.
        chosen["+actor_rollout_ref.rollout.engine_kwargs.vllm.enable_sleep_mode"] = False
    if plan.rollout != pins.SMALL:
        chosen["actor_rollout_ref.rollout.calculate_log_probs"] = True
    if plan.reward is not None:
        chosen |= {"custom_reward_function.path": plan.reward, "custom_reward_function.name": "grade"}
    return chosen


def over_fsdp(plan: Plan) -> dict[str, object]:
    """Return the FSDP trainer settings shared by all recipes that run the rollout on separate NPUs."""
    return _settings(plan, max(1, plan.npus // 2)) | {
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        # The engine's dtype, so that its weights can be compared with the trainer's bit for bit.
        "actor_rollout_ref.actor.fsdp_config.model_dtype": "bfloat16",
        # Inductor has no NPU backend without triton-ascend.
        "actor_rollout_ref.actor.use_torch_compile": False,
    }


def over_megatron(plan: Plan) -> dict[str, object]:
    """Return the Megatron trainer settings shared by all recipes that run the rollout on separate NPUs. The trainer
    has half of the NPUs, rounded up, and uses tensor parallelism."""
    trainers = plan.npus - plan.npus // 2
    return _settings(plan, trainers) | megatron.tensor_parallel(trainers)


def _arguments(plan: Plan, shared: dict[str, object], *options: str) -> list[str]:
    chosen = shared | {
        "data.train_batch_size": PROMPTS,
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
        "trainer.save_freq": plan.steps,
    }
    words = (f"{key}={value}" for key, value in chosen.items())
    return ["-m", "recipe.one_step_off_policy.main_ppo", *options, *words]


def fsdp(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for FSDP workers. The overrides omit trainer.device, which
    verl-npu sets."""
    return _arguments(plan, over_fsdp(plan))


def megatron_workers(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for Megatron workers."""
    return _arguments(plan, over_megatron(plan), "--config-name=one_step_off_ppo_megatron_trainer")


JOB = Job(
    name="one_step_off",
    arguments=fsdp,
    metric="critic/score/mean",
    trained_model=grpo.trained_model,
    idle=("megatron", "rollout"),
    environment={
        "VERL_NPU_WEIGHT_SYNC_CHECK": "engine",
        # By default vLLM's CPU engine takes 4 GiB for its cache, whatever the model.
        "VLLM_CPU_KVCACHE_SPACE": "1",
    },
    evidence=r"weight sync (\d+) of actor_rollout: rank \d+ \(rollout .*the engine holds them bit for bit",
    engines=pins.ENGINES,
)
MEGATRON = replace(
    JOB,
    name="one_step_off_megatron",
    arguments=megatron_workers,
    idle=("rollout",),
    packages=megatron.PACKAGES,
    sources=megatron.SOURCES,
    key_value_heads=2,
    engines=(pins.SMALL,),
)
