"""On-policy distillation: a Megatron student learns from a teacher's log-probabilities of the student's own answers.

Upstream's recipe runs on no device at this commit. harness.distillation adds the missing parts.
"""

from __future__ import annotations

from dataclasses import replace

from harness.jobs import one_step_off
from harness.jobs.base import Plan
from harness.pins import SCRIPTS

PROMPTS = 16


def arguments(plan: Plan) -> list[str]:
    """Return the program that starts the teacher, the recipe's module, and the Hydra overrides."""
    trainers = plan.npus - plan.npus // 2
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    chosen: dict[str, object] = {
        "data.train_files": plan.train,
        "data.prompt_key": "prompt",
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "data.dataloader_num_workers": 0,
        "++data.seed": plan.seed,
        "actor_rollout_ref.model.path": plan.model,
        f"{actor}.micro_batch_size": PROMPTS // 2,
        f"{actor}.optim.lr": 5e-3,
        f"{actor}.checkpoint.save_contents": "[model,hf_model]",
        f"{actor}.megatron.tensor_model_parallel_size": trainers,
        # The worker reads these settings, and the recipe's configuration does not have them.
        f"+{actor}.ppo_mini_batch_size": PROMPTS,
        f"+{actor}.router_replay.mode": "disabled",
        f"+{rollout}.n": 1,
        f"{rollout}.max_num_batched_tokens": 1024,
        f"{rollout}.max_model_len": 512,
        f"{rollout}.update_weights_bucket_megabytes": 1,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": trainers,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": plan.npus - trainers,
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
        "trainer.save_freq": plan.steps,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": plan.run_dir / "checkpoints",
        "ray_init.num_cpus": 64,
        "hydra.searchpath": f"[file://{plan.checkout}/verl/trainer/config]",
    }
    start = SCRIPTS / "harness" / "distillation" / "__main__.py"
    words = (f"{key}={value}" for key, value in chosen.items())
    return [str(start), str(plan.checkout), str(plan.seed + 1), "-m", "recipe.gkd.main_gkd", *words]


JOB = replace(one_step_off.MEGATRON, name="gkd", arguments=arguments, metric="actor/kl_loss")
