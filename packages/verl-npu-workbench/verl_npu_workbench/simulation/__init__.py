"""Replacements for software that needs real NPUs. They let verl, its models, and its rollout engines run on virtual
NPUs.

Only the virtual Ascend calls this package, when it starts, through the entry point `virtual_ascend.extensions`. On
real NPUs, no part of it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from virtual_ascend import has_own_torch_npu, ledger

from verl_npu import environment
from verl_npu.registry.apply import hooks


def install() -> None:
    """Register import hooks that replace NPU-specific software with simulations as soon as verl, transformers,
    MindSpeed, vLLM, or Triton is imported."""
    wanted = dict(_HOOKS)
    if has_own_torch_npu():
        wanted["vllm.v1.executor.abstract"] = "graphs:refuse_graphs"
        wanted["vllm_ascend.worker.model_runner_v1"] = "graphs:note_weights"
    if ledger.phantom_bytes():
        wanted["transformers.modeling_utils"] = "checkpoints:leave_weights_out"
    if environment.KERNEL_TRITON.is_set():
        importlib.import_module(f"{__name__}.triton_interpreter").offer_triton()
    for upstream, name in wanted.items():
        hooks.add_hook(upstream, _called(name))


def _called(name: str) -> Callable[[ModuleType], None]:
    """Return an import hook that imports a module of this package and calls one of its functions. `name` has the form
    `module:function`."""

    def hook(upstream: ModuleType) -> None:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(f"{__name__}.{module}"), function)(upstream)

    return hook


_HOOKS = {
    "verl.workers.rollout.base": "rollout:register_rollout",
    "verl.workers.rollout.replica": "rollout:register_replica",
    "verl.workers.fsdp_workers": "rollout:offer_in_vllms_place",
    "verl.workers.megatron_workers": "rollout:offer_in_vllms_place",
    "verl.utils.distributed": "rollout.transfer:offer_group",
    "verl.checkpoint_engine": "rollout.transfer:offer_checkpoint_engine",
    "vllm.triton_utils.importing": "triton_references:launch_references",
    "triton.runtime.driver": "triton_interpreter:give_driver",
    "triton.runtime.jit": "triton_interpreter:interpret",
    "triton.language.math": "triton_interpreter:offer_functions",
    "triton.runtime.interpreter": "triton_interpreter:compute_launches",
    "triton.runtime.autotuner": "triton_interpreter:follow_tuning",
    "mindspeed.op_builder.builder": "mindspeed:offer_operators",
    "mindspeed.op_builder.atb_builder": "mindspeed:load_without_atb",
    "mindspeed.ops.triton.sort_chunks_by_idx": "mindspeed:offer_sorting",
    "mindspeed.ops.triton.l2norm": "mindspeed:offer_norm",
    "mindspeed.core.ssm.chunk_gated_delta_rule": "mindspeed:offer_recurrence",
}
"""The function to call when an upstream module is imported, by the name of that module."""
