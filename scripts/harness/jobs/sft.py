"""Supervised fine-tuning through verl's FSDP trainers, started by torchrun: one process for each NPU, without Ray."""

from __future__ import annotations

from pathlib import Path

from harness.jobs.base import AGREED, Job, Plan

BATCH = 32
# The trainer up to v0.6.1 and shortly after. Later trainers use verl's engines and have other settings.
FSDP_TRAINER = "verl.trainer.fsdp_sft_trainer"


def arguments(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides. The overrides omit trainer.device, which verl-npu sets."""
    settings: dict[str, object] = {
        "data.train_files": plan.train,
        "data.val_files": plan.test,
        "data.train_batch_size": BATCH,
        "data.micro_batch_size_per_gpu": BATCH // plan.npus if plan.generated else 1,
        "data.max_length": 96 if plan.generated else 1024,
        "data.truncation": "right",
        "optim.lr": 5e-3 if plan.generated else 1e-5,
        "trainer.default_local_dir": plan.run_dir / "checkpoints",
        "trainer.logger": "console",
        "trainer.n_gpus_per_node": plan.npus,
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
        "trainer.save_freq": plan.steps,
        "trainer.test_freq": -1,
        "trainer.resume_mode": "disable",
    }
    settings |= _fsdp_trainer(plan) if plan.pin.sft == FSDP_TRAINER else _engine_trainer(plan)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={plan.npus}"]
    return [*start, "-m", plan.pin.sft, *(f"{key}={value}" for key, value in settings.items())]


def _fsdp_trainer(plan: Plan) -> dict[str, object]:
    return {
        "data.prompt_key": "extra_info",
        "data.response_key": "extra_info",
        "data.prompt_dict_keys": "[question]",
        "data.response_dict_keys": "[answer]",
        "model.partial_pretrain": plan.model,
        "trainer.checkpoint.save_contents": "[model,hf_model]",
    }


def _engine_trainer(plan: Plan) -> dict[str, object]:
    return {
        "data.use_dynamic_bsz": False,
        "data.num_workers": 0,
        "model.path": plan.model,
        # Inductor has no NPU backend without triton-ascend.
        "engine.use_torch_compile": False,
        "checkpoint.save_contents": "[model,hf_model]",
    }


def trained_model(plan: Plan) -> Path:
    """Return the folder where verl's checkpoint manager saves the model in Hugging Face format."""
    return plan.run_dir / "checkpoints" / f"global_step_{plan.steps}" / "huggingface"


JOB = Job(
    name="sft",
    arguments=arguments,
    metric="train/loss",
    trained_model=trained_model,
    # No Ray, no rollout, no Megatron. At 796871d7 the trainer does not import the module for dynamic batches.
    idle=("megatron", "micro_batches", "rollout", "weight_sync"),
    processes=lambda npus: npus,
    lines=(AGREED,),
    # At the older pins, the target of this patch is in the module that torchrun runs as the program.
    applied=("attention.use_configured_attention_for_sft",),
)
