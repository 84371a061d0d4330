"""The feature that the modules beside this one add their patches to, and the settings that its rules are about."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["SECTION", "SETTINGS", "rollout"]

rollout = Feature(
    "rollout", "Rollout engines start only with settings that work, and answer each prompt as often as configured."
)

_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_CONFIG = "verl/trainer/config/ppo_trainer.yaml"
SECTION = f"{_CONFIG}: {_ROLLOUT}"
"""The section that the rules are about. They ask nothing of a job that does not have one of these keys:"""
SETTINGS = (
    *(
        f"{SECTION}.{key}"
        for key in (
            "name",
            "mode",
            "enforce_eager",
            "free_cache_engine",
            "engine_kwargs",
            "max_num_seqs",
            "cudagraph_capture_sizes",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
            "agent.custom_async_server.path",
            "n_gpus_per_node",
            "nnodes",
        )
    ),
    *(f"{_CONFIG}: {_MODEL}.{key}" for key in ("path", "use_fused_kernels", "fused_kernel_options.impl_backend")),
    *(f"{_CONFIG}: {_MODEL}.use_liger", f"{_CONFIG}: actor_rollout_ref.hybrid_engine"),
    *(f"{_CONFIG}: trainer.nnodes", f"{_CONFIG}: trainer.n_gpus_per_node"),
    *(f"{_CONFIG}: actor_rollout_ref.actor.strategy", f"{_CONFIG}: ray_kwargs.ray_init"),
    "verl.workers.config:RolloutConfig",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
)
