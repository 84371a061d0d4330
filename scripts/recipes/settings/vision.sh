# The common settings of the GRPO rows for vision-language models. Sourced, not run.

source "$(dirname "${BASH_SOURCE[0]}")/grpo.sh"

# vllm-ascend's own model code does not work with weights that change.
export USE_OPTIMIZED_MODEL=0
lengths 1024 2048
offload False
vision=(
    "${geo3k[@]}"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.kl_loss_coef=0.01
    actor_rollout_ref.actor.use_torch_compile=False
    actor_rollout_ref.rollout.enable_chunked_prefill=False
    actor_rollout_ref.rollout.enforce_eager=True
    actor_rollout_ref.rollout.free_cache_engine=True
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True
    trainer.test_freq=-1
)
