"""Blocks of experts that upstream replaces, though in this version of transformers they have another layout."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...registry.source.probe import AllOf, Mentions, Never
from .experts import NEXT_BLOCK, QWEN3_MOE_BLOCK, VISION_BLOCK, Forward, takes_indices
from .feature import LINK, NPU_PATCH, UPSTREAM_DOES_IT, fused_ops, modeling

__all__ = ["keep_transformers_expert_block_in_qwen3_vl_moe", "keep_transformers_expert_blocks"]

_APPLY = "verl.workers.engine.fsdp.utils:apply_npu_fsdp_patches"

Result = TypeVar("Result")


class HasForward(Protocol):
    """A class of modules."""

    forward: Forward


class VisionModule(Protocol):
    """transformers' module of Qwen3-VL-MoE."""

    Qwen3VLMoeTextSparseMoeBlock: object
    Qwen3VLMoeTextExperts: HasForward


@fused_ops.wrap(
    f"{NPU_PATCH}:apply_npu_patches",
    why="Upstream puts in a block whose expert weights are [experts, width, inner], as in transformers 4. In "
    "transformers 5 they are transposed, so a checkpoint does not fit.",
    how="With transformers 5 its own block stays, and the fused experts of this feature run in it.",
    link=LINK,
    retired_by=Never("no release of upstream does it"),
    requires=Mentions(f"{NPU_PATCH}:_patch_qwen3_vl_moe", "NPUQwen3VLMoeTextSparseMoeBlock"),
    undoes=[VISION_BLOCK],
)
def keep_transformers_expert_block_in_qwen3_vl_moe(original: Callable[[], None]) -> None:
    """Run upstream's patches of the models, but keep a block of transformers that has another layout."""
    module: VisionModule = importlib.import_module(modeling("qwen3_vl_moe"))
    own = module.Qwen3VLMoeTextSparseMoeBlock
    original()
    if takes_indices(module.Qwen3VLMoeTextExperts.forward):
        module.Qwen3VLMoeTextSparseMoeBlock = own


@fused_ops.wrap(
    _APPLY,
    why="v0.8.0 puts in blocks that are written for the experts of transformers 4, and its guide for Ascend names "
    "transformers 5.3. Qwen3-MoE and Qwen3-Next end with `AttributeError: 'tuple' object has no attribute 'softmax'`, "
    "and a checkpoint of Qwen3-VL-MoE does not fit.",
    how="With transformers 5 its own blocks stay, and the fused experts of this feature run in them.",
    link="https://github.com/volcengine/verl/pull/6708",
    retired_by=UPSTREAM_DOES_IT,
    # The module cannot be imported without a model that came with transformers 5.
    requires=AllOf(Mentions(_APPLY, NPU_PATCH), Mentions(NPU_PATCH, "modeling_qwen3_5")),
    undoes=[QWEN3_MOE_BLOCK, NEXT_BLOCK, VISION_BLOCK],
)
def keep_transformers_expert_blocks(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Run upstream's patches of the models, but keep blocks of transformers that have another layout."""
    if importlib.util.find_spec("transformers.models.qwen3_5") is None:
        # Upstream's patches cannot be imported, which it logs, and goes on.
        return original(*args, **kwargs)
    vision: VisionModule = importlib.import_module(modeling("qwen3_vl_moe"))
    blocks = [*_blocks("qwen3_moe", "Qwen3Moe"), *_blocks("qwen3_next", "Qwen3Next")]
    forwards = [block.forward for block in blocks]
    own = vision.Qwen3VLMoeTextSparseMoeBlock
    result = original(*args, **kwargs)
    for block, forward in zip(blocks, forwards, strict=True):
        block.forward = forward
    if takes_indices(vision.Qwen3VLMoeTextExperts.forward):
        vision.Qwen3VLMoeTextSparseMoeBlock = own
    return result


def _blocks(model: str, prefix: str) -> list[HasForward]:
    """Return the block of a model, if its experts are one module as in transformers 5 and no list of modules."""
    module = importlib.import_module(modeling(model))
    return [getattr(module, f"{prefix}SparseMoeBlock")] if hasattr(module, f"{prefix}Experts") else []
