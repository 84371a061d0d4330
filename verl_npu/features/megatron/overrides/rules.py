"""Combinations of overrides that MindSpeed accepts, and that fail later or train something else than was meant.

Sources: MindSpeed's docs/user-guide/verl.md, the `validate_args` and `register_patches` of its features, and
Megatron's TransformerConfig.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .contract import Contract

__all__ = ["ATTENTION_BACKENDS", "Problem", "Rule", "Settings", "rules"]

# The members of Megatron's AttnBackend.
ATTENTION_BACKENDS = ("flash", "fused", "unfused", "local", "auto")

Settings = Mapping[str, object]
Rule = Callable[[Settings, Settings, Contract], "Iterator[Problem]"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one override."""

    subject: str
    expected: str
    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, found {self.found}; {self.fix}"


def _flash_attention(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_flash_attn_npu_batch_invariant"):
        if settings.get("use_flash_attn"):
            yield Problem(
                "use_flash_attn=True",
                "False beside use_flash_attn_npu_batch_invariant: both replace the same function",
                "both on",
                "leave use_flash_attn out",
            )
        return
    if not settings.get("use_flash_attn"):
        yield Problem(
            f"use_flash_attn={settings.get('use_flash_attn')}",
            "True: without flash attention MindSpeed finds no attention mask in the first forward pass",
            "off",
            "leave use_flash_attn out",
        )
    elif settings.get("sparse_mode", 0) not in (0, 2):
        yield Problem(
            f"sparse_mode={settings['sparse_mode']}",
            "0 or 2 beside use_flash_attn",
            str(settings["sparse_mode"]),
            "leave sparse_mode out",
        )


def _context_parallel(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    size = section.get("context_parallel_size")
    if size is not None and settings.get("context_parallel_size", size) != size:
        yield Problem(
            f"context_parallel_size={settings['context_parallel_size']}",
            f"the size of the groups that verl makes, megatron.context_parallel_size={size}",
            str(settings["context_parallel_size"]),
            "set both alike, or leave the override out: it is filled in",
        )


def _fused_rope(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_fused_rotary_pos_emb") and settings.get("position_embedding_type") != "rope":
        yield Problem(
            "use_fused_rotary_pos_emb=True",
            "position_embedding_type=rope beside it",
            f"position_embedding_type={settings.get('position_embedding_type', 'not set')}",
            "add +….override_transformer_config.position_embedding_type=rope",
        )


def _fused_rmsnorm(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_fused_rmsnorm") and settings.get("normalization", "RMSNorm") != "RMSNorm":
        yield Problem(
            "use_fused_rmsnorm=True",
            "normalization=RMSNorm beside it",
            f"normalization={settings['normalization']}",
            "set normalization=RMSNorm, or leave use_fused_rmsnorm out",
        )


def _fused_swiglu(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_fused_swiglu") and settings.get("swiglu", True) is not True:
        yield Problem(
            "use_fused_swiglu=True",
            "swiglu=True beside it",
            f"swiglu={settings['swiglu']}",
            "set swiglu=True, or leave use_fused_swiglu out",
        )


def _swap_optimizer(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    distributed = settings.get("use_distributed_optimizer", section.get("use_distributed_optimizer"))
    if settings.get("swap_optimizer") and not distributed:
        yield Problem(
            "swap_optimizer=True",
            "the distributed optimizer, which is what it swaps",
            f"use_distributed_optimizer={'not set' if distributed is None else distributed}",
            "set megatron.use_distributed_optimizer=True, or leave swap_optimizer out",
        )


def _mbridge(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    stages = section.get("virtual_pipeline_model_parallel_size")
    if section.get("use_mbridge") and stages not in (None, 1):
        yield Problem(
            "(megatron.use_mbridge=True)",
            "no virtual pipeline beside mbridge",
            f"megatron.virtual_pipeline_model_parallel_size={stages}",
            "leave out one of the two",
        )


def _mc2(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if not settings.get("use_ascend_mc2"):
        return
    size = settings.get("tensor_model_parallel_size", section.get("tensor_model_parallel_size"))
    sequence = settings.get("sequence_parallel", section.get("sequence_parallel"))
    if not sequence or size in (None, 1):
        yield Problem(
            "use_ascend_mc2=True",
            "sequence parallelism over a tensor-parallel group of at least 2",
            f"sequence_parallel={'not set' if sequence is None else sequence}, "
            f"tensor_model_parallel_size={'not set' if size is None else size}",
            "set megatron.sequence_parallel=True and megatron.tensor_model_parallel_size, or leave mc2 out",
        )
    if settings.get("use_ascend_coc"):
        yield Problem("use_ascend_mc2=True", "use_ascend_coc off", "both on", "leave out one of the two")


def _moe_permutation(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    key = next((k for k in ("use_fused_moe_token_permute_and_unpermute", "moe_permute_fusion") if settings.get(k)), "")
    if key and settings.get("moe_token_dispatcher_type") == "allgather":
        yield Problem(
            f"{key}=True",
            "moe_token_dispatcher_type=alltoall",
            "moe_token_dispatcher_type=allgather",
            "use the alltoall dispatcher, or leave the fused permutation out",
        )
    if key and settings.get("moe_expert_capacity_factor") and not settings.get("moe_pad_expert_input_to_capacity"):
        yield Problem(
            f"{key}=True",
            "moe_pad_expert_input_to_capacity=True beside moe_expert_capacity_factor",
            f"moe_pad_expert_input_to_capacity={settings.get('moe_pad_expert_input_to_capacity', 'not set')}",
            "set both, or neither",
        )


def _attention_backend(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    value = settings.get("attention_backend")
    if isinstance(value, str) and value not in ATTENTION_BACKENDS:
        expected = f"one of {', '.join(ATTENTION_BACKENDS)}"
        yield Problem(f"attention_backend={value}", expected, value, "leave it out: upstream's own value is flash")


def _recomputation(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    granularity, method = settings.get("recompute_granularity"), settings.get("recompute_method")
    if granularity == "full" and (method is None or settings.get("recompute_num_layers") is None):
        yield Problem(
            "recompute_granularity=full",
            "recompute_method and recompute_num_layers beside it",
            f"recompute_method={method}, recompute_num_layers={settings.get('recompute_num_layers')}",
            "set all three",
        )
    if granularity != "full" and method is not None:
        yield Problem(
            f"recompute_method={method}",
            "recompute_granularity=full beside it",
            f"recompute_granularity={granularity}",
            "set recompute_granularity=full, or leave recompute_method out",
        )


def _declared(name: str, settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    """What MindSpeed's feature `name` says of others; MindSpeed itself looks only when it builds a model, or never."""
    if name == "use_ascend_mc2" or not settings.get(name):
        return
    facts = contract.features[name]
    for other in facts.conflicts:
        if settings.get(other):
            yield Problem(f"{name}={settings[name]}", f"{other} off", f"{other}={settings[other]}", "leave one out")
    for other in facts.needs:
        # What Megatron's configuration may still get from the model cannot be judged here.
        missing = other in contract.arguments and not settings.get(other)
        if other != "use_distributed_optimizer" and (missing or settings.get(other) is False):
            yield Problem(
                f"{name}={settings[name]}", f"{other} beside it", f"{other} off", f"set {other}, or leave it out"
            )


_RULES: tuple[Rule, ...] = (
    _flash_attention,
    _context_parallel,
    _fused_rope,
    _fused_rmsnorm,
    _fused_swiglu,
    _swap_optimizer,
    _mbridge,
    _mc2,
    _moe_permutation,
    _attention_backend,
    _recomputation,
)


def rules(contract: Contract) -> Iterator[Rule]:
    """Return all rules: ours, then what each of MindSpeed's features declares."""
    yield from _RULES
    for name in contract.features:
        yield functools.partial(_declared, name)
