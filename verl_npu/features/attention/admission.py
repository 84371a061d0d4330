"""Flash attention is admitted on NPUs, where transformers looks for a package that does not exist there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from ...registry.source.probe import AllOf, Defines, Mentions, Never
from .feature import UTILS, attention

__all__ = ["NoFlashAttentionError"]

_MODEL = "transformers.modeling_utils:PreTrainedModel"
_FLASH = "flash_attention_2"
_CAN_DISPATCH = f"{_MODEL}._flash_attn_2_can_dispatch"
# What the first transformers whose check is right says where it admits an NPU.
_ADMITS = Mentions(_CAN_DISPATCH, "Detect using FlashAttention2 on Ascend NPU.")


class NoFlashAttentionError(ImportError):
    """This transformers cannot reach the NPU's flash attention."""


@attention.wrap(
    f"{_MODEL}._check_and_enable_flash_attn_2",
    why="a dummy flash_attn in sys.modules, as MindSpeed makes one, has no version, and the check raises over it",
    how="on NPUs the check does not look for flash_attn: a model that supports flash attention gets it",
    link="https://github.com/volcengine/verl/issues/6224",
    retired_by=Never("the method is gone from transformers 4.54 on"),
    requires=Defines(f"{_MODEL}._check_and_enable_flash_attn_2"),
)
def admitted(
    original: Callable[..., Any],
    model: Any,
    config: Any,
    torch_dtype: Any = None,
    device_map: Any = None,
    check_device_map: bool = True,
    hard_check_only: bool = False,
) -> Any:
    """Check that a model class can use flash attention, and enable it in `config` unless `hard_check_only`."""
    if not model._supports_flash_attn_2 or not _on_npu():
        return original(model, config, torch_dtype, device_map, check_device_map, hard_check_only)
    if not hard_check_only:
        config._attn_implementation = _FLASH
    return config


@attention.wrap(
    _CAN_DISPATCH,
    why="transformers 4.54 to 4.55.2 ask for the version of flash_attn on NPUs as well, where there is none",
    how="on NPUs a model that supports flash attention gets it, as from 4.55.3 on",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=Defines(_CAN_DISPATCH),
)
def dispatched(original: Callable[..., bool], model: Any, is_init_check: bool = False) -> bool:
    """Whether a model can use flash attention; raises where it cannot.

    Raises NoFlashAttentionError where this transformers has no way to the NPU's flash attention.
    """
    if not (model._supports_flash_attn or getattr(model, "_supports_flash_attn_2", False)) or not _on_npu():
        return original(model, is_init_check)
    imports = inspect.unwrap(sys.modules[UTILS]._lazy_imports)
    if "npu_flash_attn_func" not in imports.__code__.co_names:
        raise NoFlashAttentionError(
            f"attn_implementation={_FLASH}: expected a transformers with a way to the NPU's flash attention, found "
            "4.54, which has none; install transformers 4.53.3 or 4.55.4, or set attn_implementation to sdpa"
        )
    return True


@attention.wrap(
    f"{UTILS}:_lazy_imports",
    why="transformers 4.55.0 to 4.55.2 import flash_attn where flash_attention_2 is asked for, on NPUs as well",
    how="on NPUs the function is asked for whatever there is, which is the NPU's flash attention",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=AllOf(Mentions(f"{UTILS}:_lazy_imports", "npu_flash_attn_func"), Defines(_CAN_DISPATCH)),
)
def imported(original: Callable[..., Any], implementation: Any, *args: Any, **kwargs: Any) -> Any:
    """Import the functions of an implementation of flash attention."""
    return original(None if implementation == _FLASH and _on_npu() else implementation, *args, **kwargs)


@attention.wrap(
    f"{_MODEL}._check_and_adjust_attn_implementation",
    why="with the package kernels installed, transformers 4.56 and 4.57 fetch a CUDA kernel in place of the NPU's",
    how="on NPUs flash_attention_2 stays what it is",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=Mentions(f"{_MODEL}._check_and_adjust_attn_implementation", "is_torch_npu_available"),
    requires=Mentions(f"{_MODEL}._check_and_adjust_attn_implementation", "kernels-community/flash-attn"),
)
def not_exchanged(
    original: Callable[..., str], model: Any, attn_implementation: Any, is_init_check: bool = False
) -> str:
    """Check an implementation of attention, and give the one to be used."""
    if attn_implementation != _FLASH or not _on_npu():
        return original(model, attn_implementation, is_init_check)
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    chosen: str = model.get_correct_attn_implementation(attn_implementation, is_init_check)
    lazy_import_flash_attention(chosen)
    return chosen


def _on_npu() -> bool:
    """Whether transformers goes to the NPU's flash attention in this process."""
    from transformers.utils import is_torch_npu_available

    return bool(is_torch_npu_available())
