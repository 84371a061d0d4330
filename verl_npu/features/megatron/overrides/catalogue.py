"""The features that a verl user can switch on through MindSpeed, and the exact overrides that do it.

Source: the tables of MindSpeed's docs/user-guide/verl.md at the recorded revisions; there each feature is a "Preview".
"""

from __future__ import annotations

from dataclasses import dataclass

from .contract import Contract

__all__ = ["CATALOGUE", "Entry", "missing"]

SECTION = "actor_rollout_ref.actor.megatron"
_O = f"{SECTION}.override_transformer_config"


@dataclass(frozen=True, slots=True)
class Entry:
    """One feature: its name, the overrides that switch it on, and what it demands."""

    name: str
    overrides: tuple[str, ...]
    documented: str
    """The first revision whose documents list it; a dash if none does."""
    constraint: str
    keys: tuple[str, ...] = ()
    """The keys that MindSpeed or Megatron must know; empty if it is a setting of verl's."""


CATALOGUE = (
    Entry(
        "flash attention",
        (f"+{_O}.use_flash_attn=True",),
        "2.2.0",
        "always on: verl-npu fills it in",
        ("use_flash_attn",),
    ),
    Entry("tensor parallelism", (f"{SECTION}.tensor_model_parallel_size=N",), "1cdd0abd75", ""),
    Entry("pipeline parallelism", (f"{SECTION}.pipeline_model_parallel_size=N",), "1cdd0abd75", ""),
    Entry("expert parallelism", (f"{SECTION}.expert_model_parallel_size=N",), "1cdd0abd75", ""),
    Entry("expert tensor parallelism", (f"{SECTION}.expert_tensor_parallel_size=N",), "1cdd0abd75", ""),
    Entry(
        "sequence parallelism",
        (f"+{_O}.sequence_parallel=True",),
        "1cdd0abd75",
        "tensor parallelism of at least 2",
        ("sequence_parallel",),
    ),
    Entry(
        "context parallelism",
        (f"{SECTION}.context_parallel_size=N", f"+{_O}.context_parallel_size=N"),
        "1cdd0abd75",
        "both alike: verl-npu fills the second in",
        ("context_parallel_size",),
    ),
    Entry(
        "distributed optimizer",
        (f"+{_O}.use_distributed_optimizer=True",),
        "1cdd0abd75",
        "",
        ("use_distributed_optimizer",),
    ),
    Entry(
        "recomputation",
        (
            f"{_O}.recompute_granularity=full",
            f"{_O}.recompute_method=uniform",
            f"{_O}.recompute_num_layers=1",
        ),
        "1cdd0abd75",
        "full needs all three",
        ("recompute_granularity", "recompute_method", "recompute_num_layers"),
    ),
    Entry("mbridge", (f"{SECTION}.use_mbridge=True",), "2.3.0", "not with a virtual pipeline"),
    Entry(
        "fused rotary embedding",
        (f"+{_O}.position_embedding_type=rope", f"+{_O}.use_fused_rotary_pos_emb=True"),
        "2.3.0",
        "both",
        ("position_embedding_type", "use_fused_rotary_pos_emb"),
    ),
    Entry(
        "fused SwiGLU",
        (f"+{_O}.swiglu=True", f"+{_O}.use_fused_swiglu=True"),
        "2.3.0",
        "SwiGLU is fused in any case",
        ("use_fused_swiglu",),
    ),
    Entry(
        "fused RMSNorm",
        (f"+{_O}.normalization=RMSNorm", f"+{_O}.use_fused_rmsnorm=True"),
        "2.3.0",
        "RMSNorm is fused in any case",
        ("normalization", "use_fused_rmsnorm"),
    ),
    Entry("MoE grouped GEMM", (f"+{_O}.moe_grouped_gemm=True",), "2.3.0", "", ("moe_grouped_gemm",)),
    Entry(
        "MoE fused permutation",
        (f"+{_O}.use_fused_moe_token_permute_and_unpermute=True",),
        "2.3.0",
        "not with the allgather dispatcher; torch_npu 7.2",
        ("use_fused_moe_token_permute_and_unpermute",),
    ),
    Entry(
        "optimizer states swapped out",
        (f"+{_O}.swap_optimizer=True",),
        "-",
        "the distributed optimizer",
        ("swap_optimizer",),
    ),
    Entry(
        "matmul fused with communication",
        (f"+{_O}.use_ascend_mc2=True",),
        "-",
        "sequence parallelism, tensor parallelism of at least 2; not with use_ascend_coc",
        ("use_ascend_mc2",),
    ),
    Entry("checkpoint acceleration", (f"+{_O}.ckpt_acceleration=True",), "core_r0.15.3", "", ("ckpt_acceleration",)),
)


def missing(entry: Entry, contract: Contract) -> tuple[str, ...]:
    """Return the keys of `entry` that neither this MindSpeed nor this Megatron knows."""
    return tuple(key for key in entry.keys if not contract.knows(key))
