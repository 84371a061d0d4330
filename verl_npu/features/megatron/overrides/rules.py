"""Combinations of overrides that fail, or that train something else than was meant.

A problem is certain if it was shown with the real MindSpeed, Megatron and verl on virtual NPUs
(tests/features/megatron/test_refusals.py); it is refused. Anything else is said and not refused: MindSpeed's documents
may forbid it, or it has no effect. What MindSpeed's `validate_args` forbids is certain if a model's configuration is
given to it, which is so from 2.2.0 on.
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
    certain: bool = True
    """Whether it is shown to fail, and so refused."""
    forward: bool = False
    """Whether the first to fail is a forward pass."""

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
                certain=contract.knows("use_flash_attn_npu_batch_invariant"),
            )
        return
    if not settings.get("use_flash_attn"):
        yield Problem(
            f"use_flash_attn={settings.get('use_flash_attn')}",
            "True: without flash attention MindSpeed finds no attention mask in the first forward pass",
            "off",
            "leave use_flash_attn out",
            # With a size of the micro batch MindSpeed makes a mask, whether or not it is the right one.
            certain=not {"micro_batch_size", "seq_length"} <= settings.keys(),
            forward=True,
        )
    elif settings.get("sparse_mode", 0) not in (0, 2):
        yield Problem(
            f"sparse_mode={settings['sparse_mode']}",
            "0 or 2 beside use_flash_attn",
            str(settings["sparse_mode"]),
            "leave sparse_mode out",
            certain=contract.validates,
        )


def _context_parallel(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    size = section.get("context_parallel_size")
    if size is not None and settings.get("context_parallel_size", size) != size:
        yield Problem(
            f"context_parallel_size={settings['context_parallel_size']}",
            f"the size of the groups that verl makes, megatron.context_parallel_size={size}",
            str(settings["context_parallel_size"]),
            "set both alike, or leave the override out: it is filled in",
            forward=True,
        )


def _fused_rope(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    # Before 2.2.0 nothing looks at the type if it is not given.
    if not contract.validates and "position_embedding_type" not in settings:
        return
    if settings.get("use_fused_rotary_pos_emb") and settings.get("position_embedding_type") != "rope":
        yield Problem(
            "use_fused_rotary_pos_emb=True",
            "position_embedding_type=rope beside it",
            f"position_embedding_type={settings.get('position_embedding_type', 'not set')}",
            "add +….override_transformer_config.position_embedding_type=rope",
            certain=contract.validates,
        )


def _fused_rmsnorm(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_fused_rmsnorm") and settings.get("normalization", "RMSNorm") != "RMSNorm":
        yield Problem(
            "use_fused_rmsnorm=True",
            "normalization=RMSNorm beside it",
            f"normalization={settings['normalization']}",
            "set normalization=RMSNorm, or leave use_fused_rmsnorm out",
            certain=False,
        )


def _fused_swiglu(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("use_fused_swiglu") and settings.get("swiglu", True) is not True:
        yield Problem(
            "use_fused_swiglu=True",
            "swiglu=True beside it: MindSpeed fuses SwiGLU in any case",
            f"swiglu={settings['swiglu']}",
            "set swiglu=True, or leave use_fused_swiglu out",
            certain=False,
        )


def _swap_optimizer(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    distributed = settings.get("use_distributed_optimizer", section.get("use_distributed_optimizer"))
    # It is on in upstream's own configuration.
    if settings.get("swap_optimizer") and distributed is not None and not distributed:
        yield Problem(
            "swap_optimizer=True",
            "the distributed optimizer, which is what it swaps",
            f"use_distributed_optimizer={distributed}",
            "set megatron.use_distributed_optimizer=True, or leave swap_optimizer out",
        )


def _mbridge(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    stages = section.get("virtual_pipeline_model_parallel_size")
    if section.get("use_mbridge") and stages not in (None, 1):
        yield Problem(
            "(megatron.use_mbridge=True)",
            "no virtual pipeline beside mbridge, by MindSpeed's documents",
            f"megatron.virtual_pipeline_model_parallel_size={stages}",
            "leave out one of the two if the job fails",
            # Scripts of upstream's own ask for both.
            certain=False,
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
            # Where it is off, older revisions leave mc2 off too, and newer ones have no linear layer at all.
            certain=contract.validates or sequence is None or size is None,
        )
    if settings.get("use_ascend_coc"):
        yield Problem("use_ascend_mc2=True", "use_ascend_coc off", "both on", "leave out one of the two")


def _dispatcher(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    if settings.get("moe_token_dispatcher_type") == "allgather" and settings.get("variable_seq_lengths", True):
        yield Problem(
            "moe_token_dispatcher_type=allgather",
            "alltoall: verl asks Megatron for variable sequence lengths, which the allgather dispatcher refuses",
            "allgather",
            "leave it out: upstream's own value is alltoall",
        )


def _moe_permutation(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    key = next((k for k in ("use_fused_moe_token_permute_and_unpermute", "moe_permute_fusion") if settings.get(k)), "")
    if key and settings.get("moe_expert_capacity_factor") and not settings.get("moe_pad_expert_input_to_capacity"):
        yield Problem(
            f"{key}=True",
            "moe_pad_expert_input_to_capacity=True beside moe_expert_capacity_factor",
            f"moe_pad_expert_input_to_capacity={settings.get('moe_pad_expert_input_to_capacity', 'not set')}",
            "set both, or neither",
            certain=contract.validates,
        )


def _latent_attention(settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    """MindSpeed's own latent attention takes its sizes from the overrides; the model's are Megatron's names."""
    if not settings.get("multi_head_latent_attention"):
        return
    wanted = ("qk_rope_head_dim", "qk_nope_head_dim") if contract.validates else ()
    missing = [key for key in (*wanted, "seq_length") if settings.get(key) is None]
    if missing:
        yield Problem(
            "multi_head_latent_attention=True",
            f"{' and '.join(missing)} beside it: MindSpeed finds the model's own nowhere",
            "not set",
            "add them as they are in the model's config.json, or take multi_latent_attention=True, which needs none",
            forward=missing == ["seq_length"],
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
            "recompute_granularity=full beside it, without which it has no effect",
            f"recompute_granularity={granularity}",
            "set recompute_granularity=full, or leave recompute_method out",
            certain=False,
        )


def _declared(name: str, settings: Settings, section: Settings, contract: Contract) -> Iterator[Problem]:
    """What MindSpeed's feature `name` says of others when it validates."""
    if name == "use_ascend_mc2" or not settings.get(name):
        return
    facts, certain = contract.features[name], contract.validates
    for other in facts.conflicts:
        if settings.get(other):
            found = f"{other}={settings[other]}"
            yield Problem(f"{name}={settings[name]}", f"{other} off", found, "leave one out", certain)
    for other in facts.needs:
        # What Megatron's configuration may still get from the model cannot be judged here.
        missing = other in contract.arguments and not settings.get(other)
        if other != "use_distributed_optimizer" and (missing or settings.get(other) is False):
            fix = f"set {other}, or leave it out"
            yield Problem(f"{name}={settings[name]}", f"{other} beside it", f"{other} off", fix, certain)


_RULES: tuple[Rule, ...] = (
    _flash_attention,
    _context_parallel,
    _fused_rope,
    _fused_rmsnorm,
    _fused_swiglu,
    _swap_optimizer,
    _mbridge,
    _mc2,
    _dispatcher,
    _moe_permutation,
    _latent_attention,
    _attention_backend,
    _recomputation,
)


def rules(contract: Contract) -> Iterator[Rule]:
    """Return all rules: ours, then what each of MindSpeed's features declares."""
    yield from _RULES
    for name in contract.features:
        yield functools.partial(_declared, name)
