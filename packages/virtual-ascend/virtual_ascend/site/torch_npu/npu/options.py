"""Switches of torch.npu that change how a real NPU compiles and computes; here they are checked and remembered."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from packaging.version import Version
from virtual_ascend.operators.layout import allow_internal_format
from virtual_ascend.settings import Settings


class Config:
    """`torch.npu.config`: as in torch_npu, its switch can be set and not read."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "allow_internal_format":
            set_option({"ALLOW_INTERNAL_FORMAT": "enable" if value else "disable"})


@dataclass(slots=True)
class Matmul:
    """`torch.npu.matmul`."""

    allow_hf32: bool = False


@dataclass(slots=True)
class Conv:
    """`torch.npu.conv`."""

    allow_hf32: bool = True


config = Config()
matmul = Matmul()
conv = Conv()


def _cores(value: str) -> bool:
    return value.isdigit() and 1 <= int(value) <= 32


# As torch_npu/npu/npu_config.py; what is not listed takes anything.
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
# Seen in the wheel 2.13.0, and not in 2.8.0.
_NEW = Version(Settings.read().torch_npu_version) >= Version("2.13")
_DEPRECATED = ("ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE")
_state = {"MM_BMM_ND_ENABLE": True, "jitCompile": False}


def set_option(option: dict[str, object]) -> None:
    """Options of the compiler of operators: checked; nothing is compiled here.

    Raises:
        TypeError: not a dictionary.
        ValueError: an option has a value that it does not take.
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
    """Remembered: nothing is compiled here in either mode."""
    _state["jitCompile"] = bool(jit_compile)


def is_jit_compile_false() -> bool:
    """Tell whether operators are taken ready-made; they are, unless `set_compile_mode` said otherwise."""
    return not _state["jitCompile"]


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Remembered: there is one layout here."""
    _state["MM_BMM_ND_ENABLE"] = bool(is_nd)


def get_mm_bmm_format_nd() -> bool:
    """What was remembered."""
    return _state["MM_BMM_ND_ENABLE"]
