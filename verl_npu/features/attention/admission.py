"""Flash attention is admitted on NPUs, where transformers looks for a package that does not exist there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...errors import NoFlashAttentionError
from ...registry.source.probe import AllOf, Defines, Mentions, Never
from .feature import FLASH_ATTENTION, UTILS, attention

__all__ = [
    "admit_flash_attention_in_dispatch_check",
    "admit_flash_attention_in_model_check",
    "import_npu_flash_attention",
    "prevent_cuda_kernel_download",
]

_MODEL = "transformers.modeling_utils:PreTrainedModel"
_CAN_DISPATCH = f"{_MODEL}._flash_attn_2_can_dispatch"
# The first transformers whose check is right says this when it admits an NPU.
_ADMITS = Mentions(_CAN_DISPATCH, "Detect using FlashAttention2 on Ascend NPU.")


class AttentionConfig(Protocol):
    """A model's configuration in transformers."""

    _attn_implementation: str | None


class Model(Protocol):
    """A model of transformers, or its class. The older versions have the first mark, the newer ones the second."""

    _supports_flash_attn_2: bool
    _supports_flash_attn: bool

    def get_correct_attn_implementation(self, implementation: str, is_init_check: bool) -> str: ...


Config = TypeVar("Config", bound=AttentionConfig)
Result = TypeVar("Result")


@attention.wrap(
    f"{_MODEL}._check_and_enable_flash_attn_2",
    why="MindSpeed puts a dummy flash_attn without a version into sys.modules. transformers' check then fails with "
    "`No package metadata was found for flash_attn`.",
    how="On NPUs the check does not look for flash_attn: every model that supports flash attention gets it.",
    link="https://github.com/volcengine/verl/issues/6224",
    retired_by=Never("the method is gone from transformers 4.54 on"),
    requires=Defines(f"{_MODEL}._check_and_enable_flash_attn_2"),
)
def admit_flash_attention_in_model_check(
    original: Callable[..., Config],
    model: Model,
    config: Config,
    torch_dtype: object = None,
    device_map: object = None,
    check_device_map: bool = True,
    hard_check_only: bool = False,
) -> Config:
    """Check that a model class can use flash attention, and enable it in `config` unless `hard_check_only`."""
    if not model._supports_flash_attn_2 or not _on_npu():
        return original(model, config, torch_dtype, device_map, check_device_map, hard_check_only)
    if not hard_check_only:
        config._attn_implementation = FLASH_ATTENTION
    return config


@attention.wrap(
    _CAN_DISPATCH,
    why="transformers 4.54 to 4.55.2 look up the version of flash_attn on NPUs as well, and fail with "
    "`No package metadata was found for flash_attn`.",
    how="On NPUs every model that supports flash attention gets it, as in transformers from 4.55.3 on.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=Defines(_CAN_DISPATCH),
)
def admit_flash_attention_in_dispatch_check(
    original: Callable[[Model, bool], bool], model: Model, is_init_check: bool = False
) -> bool:
    """Return true if a model can use flash attention; upstream raises an error otherwise.

    Raises NoFlashAttentionError if this transformers cannot reach the NPU's flash attention.
    """
    if not (model._supports_flash_attn or getattr(model, "_supports_flash_attn_2", False)) or not _on_npu():
        return original(model, is_init_check)
    imports = inspect.unwrap(sys.modules[UTILS]._lazy_imports)
    if "npu_flash_attn_func" not in imports.__code__.co_names:
        raise NoFlashAttentionError(
            subject=f"attn_implementation={FLASH_ATTENTION}",
            expected="a transformers that can reach the NPU's flash attention",
            found="transformers 4.54, which cannot",
            fix="install transformers 4.53.3 or 4.55.4, or set attn_implementation to sdpa",
        )
    return True


@attention.wrap(
    f"{UTILS}:_lazy_imports",
    why="transformers 4.55.0 to 4.55.2 import flash_attn for flash_attention_2 on NPUs as well, and fail with "
    "`No module named 'flash_attn'`.",
    how="On NPUs the function is called without a name, and then imports the NPU's flash attention.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=_ADMITS,
    requires=AllOf(Mentions(f"{UTILS}:_lazy_imports", "npu_flash_attn_func"), Defines(_CAN_DISPATCH)),
)
def import_npu_flash_attention(
    original: Callable[..., Result], implementation: str | None, *args: object, **kwargs: object
) -> Result:
    """Import the functions of an implementation of flash attention."""
    name = None if implementation == FLASH_ATTENTION and _on_npu() else implementation
    return original(name, *args, **kwargs)


@attention.wrap(
    f"{_MODEL}._check_and_adjust_attn_implementation",
    why="If the package kernels is installed, transformers 4.56 and 4.57 download the CUDA kernel "
    "`kernels-community/flash-attn` and use it in place of the NPU's flash attention.",
    how="On NPUs flash_attention_2 is not exchanged for a kernel from the hub.",
    link="https://github.com/huggingface/transformers/pull/40151",
    retired_by=Mentions(f"{_MODEL}._check_and_adjust_attn_implementation", "is_torch_npu_available"),
    requires=Mentions(f"{_MODEL}._check_and_adjust_attn_implementation", "kernels-community/flash-attn"),
)
def prevent_cuda_kernel_download(
    original: Callable[[Model, str | None, bool], str],
    model: Model,
    attn_implementation: str | None,
    is_init_check: bool = False,
) -> str:
    """Check an implementation of attention, and return the one to use."""
    if attn_implementation != FLASH_ATTENTION or not _on_npu():
        return original(model, attn_implementation, is_init_check)
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    chosen = model.get_correct_attn_implementation(attn_implementation, is_init_check)
    lazy_import_flash_attention(chosen)
    return chosen


def _on_npu() -> bool:
    """Return whether transformers uses the NPU's flash attention in this process."""
    from transformers.utils import is_torch_npu_available

    return bool(is_torch_npu_available())
