"""GRPO through verl's main_ppo: FSDP, actor and rollout in one worker, a reference model, and a KL loss."""

from __future__ import annotations

from pathlib import Path

from harness import pins
from harness.jobs.base import Job, Plan

PROMPTS = 16
ANSWERS = 8
_COMPILATION = "++actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config"


def arguments(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides. The overrides omit trainer.device, which verl-npu sets."""
    pin = plan.pin
    micro = PROMPTS * ANSWERS // max(2, plan.npus) if plan.generated else 4
    small_engine = plan.virtual and plan.rollout == pins.SMALL
    settings: dict[str, object] = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": plan.train,
        "data.val_files": plan.test,
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 64 if plan.generated else 512,
        "data.max_response_length": 16 if plan.generated else 256,
        "data.filter_overlong_prompts": not plan.generated,
        "++data.seed": plan.seed,
        "actor_rollout_ref.model.path": plan.model,
        "actor_rollout_ref.actor.optim.lr": 5e-3 if plan.generated else 1e-6,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        # Inductor has no NPU backend without triton-ascend.
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.checkpoint.save_contents": "[model,hf_model]",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.rollout.name": pin.virtual_rollout if small_engine else "vllm",
        "actor_rollout_ref.rollout.n": ANSWERS,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
        **_trainer(plan),
        # Placement groups, servers, and storage ask for CPUs, and would wait forever on a laptop with two.
        f"{pin.ray_init}.num_cpus": 64,
    }
    if not small_engine:
        # From verl's Ascend examples. Nobody has tried them on real NPUs yet, because none was available.
        settings |= {
            "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4,
            "actor_rollout_ref.rollout.enforce_eager": True,
        }
    if plan.virtual and not small_engine:
        if pin.engine is not None and pin.engine.graphs:
            # vLLM's default, but with two sizes instead of dozens. verl's own setting for the sizes ends a server:
            # verl passes `[8, 64]`, and vLLM reads that as one number.
            settings |= {
                "actor_rollout_ref.rollout.enforce_eager": False,
                _COMPILATION: "{cudagraph_capture_sizes:[8,64]}",
            }
        settings |= {
            "actor_rollout_ref.rollout.mode": "async" if pin.engine is None else pin.engine.mode,
            "actor_rollout_ref.rollout.max_model_len": 512,
            "actor_rollout_ref.rollout.max_num_batched_tokens": 1024,
            "actor_rollout_ref.rollout.calculate_log_probs": True,
        }
    if plan.reward is not None:
        settings |= {f"{pin.reward}.path": plan.reward, f"{pin.reward}.name": "grade"}
    small = pin.small if plan.virtual else ()
    return ["-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in settings.items()), *small]


def _trainer(plan: Plan) -> dict[str, object]:
    return {
        "trainer.n_gpus_per_node": plan.npus,
        "trainer.nnodes": 1,
        "trainer.logger": "console",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        # Once, at the last step, because the trained weights judge the run.
        "trainer.save_freq": plan.steps,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": plan.run_dir / "checkpoints",
        "trainer.rollout_data_dir": plan.run_dir / "rollouts",
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
    }


def trained_model(plan: Plan) -> Path:
    """Return the folder where verl's checkpoint manager saves the model in Hugging Face format."""
    return plan.run_dir / "checkpoints" / f"global_step_{plan.steps}" / "actor" / "huggingface"


JOB = Job(
    name="grpo",
    arguments=arguments,
    metric="critic/score/mean",
    trained_model=trained_model,
    # The workers use FSDP, and trainer and rollout share them, so nothing is synced.
    idle=("megatron", "weight_sync"),
    engines=pins.ENGINES,
)
