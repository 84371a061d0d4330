"""The virtual Ascend: a device that answers to `npu`, computes on the CPU, and talks `hccl` over loopback.

Opt-in by `VERL_NPU_VIRTUAL=<number of NPUs>`. Everything it computes is simulated: it shows whether a program runs on
the `npu` device, not what a real NPU's numbers, HCCL or speed would be.
"""

from __future__ import annotations

from .. import environment
from .simulated import description, loaded

# Typing and pathlib would cost every `import torch` more than all else that is here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = [
    "description",
    "device_count_configured",
    "expose",
    "load",
    "loaded",
    "requested",
]


def requested(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for virtual NPUs: `VERL_NPU_VIRTUAL` is set, not empty and not "0"."""
    return environment.VIRTUAL.text(environ) != "0"


def device_count_configured() -> int:
    """The number of NPUs that this machine pretends to have; 0 if none was asked for.

    Raises:
        SettingError: `VERL_NPU_VIRTUAL` is not a number of NPUs.
    """
    if not requested():
        return 0
    from .settings import Settings

    return Settings.read().devices


def expose() -> None:
    """Make `torch_npu` importable. No torch import.

    That of an installed wheel then finds a stub CANN; without one, or if ours is asked for, our packages `torch_npu`
    and `acl` go on `sys.path`. verl's registries of rollout engines get the one for virtual NPUs when they are
    imported.

    Raises:
        RealAscendError: there is a CANN here, or a torch_npu that is not ours is imported where ours is asked for.
        SettingError: a variable of the virtual Ascend has a value that is not understood.
    """
    from ..registry.apply import hooks
    from . import camem, choice, exposure
    from .settings import Settings

    settings = Settings.read()
    if choice.is_real(settings):
        from .real import loading

        loading.expose()
    else:
        exposure.expose(first=settings.torch_npu == "ours")
        camem.stand_in()
        hooks.add_hook("vllm.v1.executor.abstract", _refuse_graphs)
    hooks.add_hook("verl.workers.rollout.base", _offer_rollout)
    hooks.add_hook("verl.workers.rollout.replica", _offer_replica)
    hooks.add_hook("verl.utils.distributed", _offer_group)
    hooks.add_hook("verl.checkpoint_engine", _offer_checkpoint_engine)
    hooks.add_hook("torchvision.extension", _declare_vision)
    hooks.add_hook("vllm.triton_utils.importing", _launch_references)
    if settings.phantom:
        hooks.add_hook("transformers.modeling_utils", _leave_weights_out)
    for name in _OF_MINDSPEED:
        hooks.add_hook(name, _compute_mindspeeds)
    for workers in ("verl.workers.fsdp_workers", "verl.workers.megatron_workers"):
        hooks.add_hook(workers, _offer_in_vllms_place)


def load() -> None:
    """Bring everything up in this process, once: device, hccl, `torch.npu`, `torch_npu`, `acl`, `npu-smi`, CANN.

    Raises:
        VirtualError: one of its subclasses says what is missing.
        SettingError: a variable of the virtual Ascend has a value that is not understood.
    """
    from . import choice, eager, loading
    from .real import loading as real
    from .settings import Settings

    (real if choice.is_real(Settings.read()) else loading).load()
    if loaded():
        eager.install()


def _offer_rollout(module: ModuleType) -> None:
    """Enter the rollout engine into upstream's registry: only here, never on real NPUs."""
    from .rollout import register_rollout

    register_rollout(module)


def _offer_replica(module: ModuleType) -> None:
    """The same for the server of the revisions that have one."""
    from .rollout import register_replica

    register_replica(module)


def _offer_group(module: ModuleType) -> None:
    """Make groups for weights without vLLM."""
    from .rollout.transfer import offer_group

    offer_group(module)


def _offer_checkpoint_engine(module: ModuleType) -> None:
    """Let the engine that hands weights over be imported without vLLM."""
    from .rollout.transfer import offer_checkpoint_engine

    offer_checkpoint_engine(module)


_OF_MINDSPEED = {
    "mindspeed.op_builder.builder": "offer_operators",
    "mindspeed.ops.triton.sort_chunks_by_idx": "offer_sorting",
    "mindspeed.ops.triton.l2norm": "offer_norm",
    "mindspeed.core.ssm.chunk_gated_delta_rule": "offer_recurrence",
}
"""By module of MindSpeed, the function of `mindspeed` that computes what it compiles or has Triton do."""


def _compute_mindspeeds(module: ModuleType) -> None:
    from . import mindspeed

    getattr(mindspeed, _OF_MINDSPEED[module.__name__])(module)


def _refuse_graphs(module: ModuleType) -> None:
    """Have an engine that would capture graphs refused before it starts."""
    from .graphs import refuse_graphs

    refuse_graphs(module)


def _leave_weights_out(module: ModuleType) -> None:
    """Have transformers make models without reading their weights, which would be phantoms."""
    from .checkpoints import leave_weights_out

    leave_weights_out(module)


def _declare_vision(module: ModuleType) -> None:
    """Let torchvision be imported where its compiled part cannot be loaded."""
    from .vision import declare_operators

    declare_operators(module)


def _launch_references(module: ModuleType) -> None:
    """Compute the kernels of Triton that vLLM and vllm-ascend launch."""
    from .triton_references import launch_references

    launch_references(module)


def _offer_in_vllms_place(module: ModuleType) -> None:
    """The same for the workers of a revision without such a registry."""
    from .rollout import offer_in_vllms_place

    offer_in_vllms_place(module)
