"""verl on virtual NPUs: what they need beside them for verl, its models and engines.

Called by the virtual Ascend alone, where it comes up: it names `install` in the entry points
`virtual_ascend.extensions`. On real NPUs nothing of this is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from virtual_ascend import has_own_torch_npu, ledger

from ..registry.apply import hooks

__all__ = ["install"]


def install() -> None:
    """Have verl, transformers, MindSpeed and vLLM find what takes the place of a real NPU's software, when they are
    imported."""
    for name, hook in _HOOKS.items():
        hooks.add_hook(name, hook)
    if has_own_torch_npu():
        hooks.add_hook("vllm.v1.executor.abstract", _refuse_graphs)
    if ledger.phantom_bytes():
        hooks.add_hook("transformers.modeling_utils", _leave_weights_out)


def _offer_rollout(module: ModuleType) -> None:
    """Enter the rollout engine into upstream's registry: only here, never on real NPUs."""
    from .rollout import register_rollout

    register_rollout(module)


def _offer_replica(module: ModuleType) -> None:
    """The same for the server of the revisions that have one."""
    from .rollout import register_replica

    register_replica(module)


def _offer_in_vllms_place(module: ModuleType) -> None:
    """The same for the workers of a revision without such a registry."""
    from .rollout import offer_in_vllms_place

    offer_in_vllms_place(module)


def _offer_group(module: ModuleType) -> None:
    """Make groups for weights without vLLM."""
    from .rollout.transfer import offer_group

    offer_group(module)


def _offer_checkpoint_engine(module: ModuleType) -> None:
    """Let the engine that hands weights over be imported without vLLM."""
    from .rollout.transfer import offer_checkpoint_engine

    offer_checkpoint_engine(module)


def _compute_mindspeeds(module: ModuleType) -> None:
    """Compute what MindSpeed compiles or has Triton do."""
    from . import mindspeed

    mindspeed.OFFERS[module.__name__](module)


def _refuse_graphs(module: ModuleType) -> None:
    """Have an engine that would capture graphs refused before it starts."""
    from .graphs import refuse_graphs

    refuse_graphs(module)


def _leave_weights_out(module: ModuleType) -> None:
    """Have transformers make models without reading their weights, which would be phantoms."""
    from .checkpoints import leave_weights_out

    leave_weights_out(module)


def _launch_references(module: ModuleType) -> None:
    """Compute the kernels of Triton that vLLM and vllm-ascend launch."""
    from .triton_references import launch_references

    launch_references(module)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "verl.workers.rollout.base": _offer_rollout,
    "verl.workers.rollout.replica": _offer_replica,
    "verl.workers.fsdp_workers": _offer_in_vllms_place,
    "verl.workers.megatron_workers": _offer_in_vllms_place,
    "verl.utils.distributed": _offer_group,
    "verl.checkpoint_engine": _offer_checkpoint_engine,
    "vllm.triton_utils.importing": _launch_references,
    "mindspeed.op_builder.builder": _compute_mindspeeds,
    "mindspeed.ops.triton.sort_chunks_by_idx": _compute_mindspeeds,
    "mindspeed.ops.triton.l2norm": _compute_mindspeeds,
    "mindspeed.core.ssm.chunk_gated_delta_rule": _compute_mindspeeds,
}
"""By module of an upstream, what is to be done with it."""
