"""Settings of the npugraph_ex compiler, with the wheel's names. Settings that do not change results are accepted and
have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CompilerConfig"]

# The settings and defaults of torch_npu 2.10.0.post4.
_DEFAULTS: Mapping[str, Any] = {
    "force_eager": False,
    "use_graph_pool": None,
    "reuse_graph_pool_in_same_fx": True,
    "capture_limit": 64,
    "clone_input": True,
    "clone_output": False,
    "disable_static_kernel_compile_cache": False,
    "static_kernel_compile": False,
    "frozen_parameter": False,
    "remove_noop_ops": True,
    "remove_cat_ops": True,
    "inplace_pass": True,
    "input_inplace_pass": True,
    "pattern_fusion_pass": True,
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
    "dump_tensor_data": False,
    "data_dump_stage": "optimized",
    "data_dump_dir": "./",
    "_vllm_aclnn_static_kernel_sym_index": 0,
    "_vllm_aclnn_static_kernel_sym_range": None,
    "super_kernel_optimize": False,
    "super_kernel_optimize_options": None,
    "super_kernel_debug_options": None,
    "deadlock_check": False,
    "capture_error_mode": "global",
    "mode": "npugraph_ex",
    "force_recapture": False,
    "record_statistics_debug_info": False,
}


class CompilerConfig:
    """The settings of one npugraph_ex compiler."""

    def __init__(self) -> None:
        for name, value in _DEFAULTS.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _DEFAULTS:
            raise ValueError(f"CompilerConfig has no option {name}; the options are {list(_DEFAULTS)}")
        super().__setattr__(name, value)


def _process_kwargs_options(config: CompilerConfig, kwargs: Mapping[str, Any]) -> None:
    """Apply the `options` in `kwargs`. vllm-ascend calls this function by its name.

    Raises:
        ValueError: an option does not exist.
    """
    for name, value in kwargs.get("options", {}).items():
        if name not in _DEFAULTS:
            raise ValueError(
                f"Invalid option '{name}'. The 'CompilerConfig' object does not have attribute '{name}'. "
                f"Supported attributes are: {list(_DEFAULTS)}"
            )
        setattr(config, name, value)
