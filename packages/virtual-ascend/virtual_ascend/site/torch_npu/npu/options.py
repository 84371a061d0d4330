"""Switches of torch.npu for a real NPU's compiler and arithmetic. On virtual NPUs, they are only checked and
stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from packaging.version import Version
from virtual_ascend.operators.layout import allow_internal_format
from virtual_ascend.settings import Settings


class Config:
    """The class of `torch.npu.config`. As in torch_npu, its attribute `allow_internal_format` can be set but not
    read."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "allow_internal_format":
            set_option({"ALLOW_INTERNAL_FORMAT": "enable" if value else "disable"})


@dataclass(slots=True)
class Matmul:
    """The class of `torch.npu.matmul`."""

    allow_hf32: bool = False


@dataclass(slots=True)
class Conv:
    """The class of `torch.npu.conv`."""

    allow_hf32: bool = True


config = Config()
matmul = Matmul()
conv = Conv()


def _cores(value: str) -> bool:
    return value.isdigit() and 1 <= int(value) <= 32


# The allowed values, as in torch_npu/npu/npu_config.py. Options that are not listed take any value.
_VALUES: dict[str, tuple[str, ...] | Callable[[str], bool]] = {
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_AICORE_NUM": _cores,
    "ACL_OP_DEBUG_LEVEL": ("0", "1", "2", "3", "4"),
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
}
_KNOWN = (
    *_VALUES,
    "ACL_DEBUG_DIR",
    "ACL_OP_COMPILER_CACHE_DIR",
    "ACL_OP_DEBUG_OPTION",
    "ACL_OPTYPELIST_FOR_IMPLMODE",
    "ALLOW_CONV_HF32",
    "ALLOW_INTERNAL_FORMAT",
    "ALLOW_MATMUL_HF32",
    "FORCE_ACLNN_OP_LIST",
    "MM_BMM_ND_ENABLE",
    "autotune",
    "autotunegraphdumppath",
    "jitCompile",
    "jitCompileInit",
    "mdldumpconfigpath",
    "mdldumpswitch",
)
# The wheel of 2.13.0 has CUBE_MATH_TYPE, that of 2.8.0 does not.
_NEW = Version(Settings.read().torch_npu_version) >= Version("2.13")
_DEPRECATED = ("ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE")
_state = {"MM_BMM_ND_ENABLE": True, "jitCompile": False}


def set_option(option: dict[str, object]) -> None:
    """Check options of the operator compiler. They have no effect, because a virtual NPU compiles nothing.

    Raises:
        TypeError: `option` is not a dictionary.
        RuntimeError: an option does not exist.
        ValueError: an option has an invalid value.
    """
    if not isinstance(option, dict):
        raise TypeError("npu option must be a dict.")
    for name, value in option.items():
        if name not in _KNOWN and not (name == "CUBE_MATH_TYPE" and _NEW):
            raise RuntimeError(f"invalid npu option name:{name}")
        allowed = _VALUES.get(name, ())
        if callable(allowed):
            if not allowed(str(value)):
                raise ValueError(f"value of {name} should be a number from 1 to 32 but got {value}")
        elif allowed and str(value) not in allowed:
            raise ValueError(f"value of {name} should be in {list(allowed)} but got {value}")
        if name in _DEPRECATED:
            warnings.warn(f"{name} will be deprecated in future version.", stacklevel=2)
    if option.get("ALLOW_INTERNAL_FORMAT") in ("enable", "disable"):
        allow_internal_format(option["ALLOW_INTERNAL_FORMAT"] == "enable")
    if option.get("MM_BMM_ND_ENABLE") in ("enable", "disable"):
        set_mm_bmm_format_nd(option["MM_BMM_ND_ENABLE"] == "enable")
    if option.get("jitCompile") in ("enable", "disable"):
        set_compile_mode(option["jitCompile"] == "enable")


def set_compile_mode(jit_compile: bool = False) -> None:
    """Store the compile mode. A virtual NPU compiles nothing in either mode."""
    _state["jitCompile"] = bool(jit_compile)


def is_jit_compile_false() -> bool:
    """Return whether operators count as precompiled. They do unless `set_compile_mode` was called with another
    mode."""
    return not _state["jitCompile"]


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Store the setting. It has no effect, because a virtual NPU has only one layout for these operators."""
    _state["MM_BMM_ND_ENABLE"] = bool(is_nd)


def get_mm_bmm_format_nd() -> bool:
    """Return the setting that `set_mm_bmm_format_nd` stored."""
    return _state["MM_BMM_ND_ENABLE"]
