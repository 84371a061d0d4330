"""The operators of vllm-ascend's own library, `torch.ops._C_ascend`, that its experts need.

The schemas are those in vllm_ascend_C of the wheels of 0.13.0 and 0.23.0. Before vllm-ascend calls any other operator
of that library, it checks whether the operator exists, and works without missing operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packaging.version import Version

from ..device.extension import extension
from . import schemas
from .experts import moe_gating_top_k, npu_moe_init_routing_custom

OPERATORS: Mapping[str, Callable[..., object]] = {
    "moe_gating_top_k": moe_gating_top_k,
    "npu_moe_init_routing_custom": npu_moe_init_routing_custom,
}
SCHEMAS = (
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm, "
    "int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None) -> "
    "(Tensor y, Tensor expert_idx, Tensor out)",
    "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, "
    "int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, "
    "int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, int quant_mode=0, "
    "int[2] active_expert_range=[], int row_idx_type=0) -> (Tensor, Tensor, Tensor, Tensor)",
)
SINCE = Version("0.13.0")


_WEAK = "weak_ref_tensor(Tensor input) -> Tensor"  # csrc/torch_binding.cpp, in all releases with graphs


def register(release: str, torch_npu: str) -> None:
    """Define the operators that this vllm-ascend release provides for this torch_npu version. Call this function only
    once in each process."""
    schemas.register_plain("_C_ascend", _WEAK, extension().weak_tensor)
    if Version(release) >= SINCE:
        schemas.register_own("_C_ascend", SCHEMAS, OPERATORS, torch_npu)
