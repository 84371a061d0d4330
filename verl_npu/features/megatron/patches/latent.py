"""DeepSeek-V3's multi-head latent attention beside Megatron 0.12.1, which Ascend's guides name up to v0.7."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TypeVar

from ....registry.source.probe import AllOf, Defines, Mentions, Never
from ..feature import megatron

__all__: list[str] = []

_DEEPSEEK = "verl.models.mcore.config_converter:hf_to_mcore_config_dpskv3"
_SET = "set_experimental_flag"
_MODULE = "verl.utils.megatron_utils:make_megatron_module"
_PACKING = "verl.models.mcore.patch_v012:apply_patch"

Result = TypeVar("Result")


@megatron.wrap(
    _DEEPSEEK,
    why="A Megatron worker of DeepSeek-V3 or Moonlight without mbridge, and the converter of checkpoints, end with "
    "ImportError: cannot import name 'set_experimental_flag' from 'megatron.core.config': Megatron 0.12.1, which the "
    "guide for Ascend and recipe/r1_ascend name, has the flag and no function that sets it.",
    how="Megatron's module gets the function for the call, if it lacks one: it sets the flag.",
    link="https://github.com/verl-project/verl/pull/3975",
    retired_by=Never("later pins name a Megatron that has the function, and upstream still calls it"),
    requires=Mentions(_DEEPSEEK, _SET),
)
def set_the_experimental_flag_of_an_older_megatron(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Return Megatron's configuration of DeepSeek-V3."""
    flags = importlib.import_module("megatron.core.config")
    if hasattr(flags, _SET):
        return original(*args, **kwargs)

    def set_experimental_flag(flag: bool) -> None:
        vars(flags)["ENABLE_EXPERIMENTAL"] = flag

    vars(flags)[_SET] = set_experimental_flag
    try:
        return original(*args, **kwargs)
    finally:
        del vars(flags)[_SET]


@megatron.wrap(
    _MODULE,
    why="DeepSeek-V3 or Moonlight through mbridge on Megatron 0.12.1: the first log-probabilities end in an error of "
    "shapes, in MindSpeed's fused rotary embedding or beside it. That Megatron rotates packed sequences as if they "
    "were a batch, which upstream mends for models without mbridge alone.",
    how="Upstream's own mend, verl.models.mcore.patch_v012, is applied before a model with latent attention is made.",
    link="https://github.com/verl-project/verl/pull/4931",
    retired_by=Mentions(_MODULE, "apply_patch"),
    requires=AllOf(Defines(_MODULE), Defines(_PACKING)),
)
def pack_latent_attention_through_mbridge_too(
    original: Callable[..., Result], wrap_config: object, tf_config: object, *args: object, **kwargs: object
) -> Result:
    """Return Megatron's modules of a model."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    if isinstance(tf_config, MLATransformerConfig) and not _packs():
        importlib.import_module("verl.models.mcore.patch_v012").apply_patch()
    return original(wrap_config, tf_config, *args, **kwargs)


def _packs() -> bool:
    """Whether queries of packed sequences lose the batch's dimension: in later Megatrons, and once it is mended."""
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    return "squeeze(1)" in inspect.getsource(MLASelfAttention.get_query_key_value_tensors)
