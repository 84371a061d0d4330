"""What verl-npu uses of the objects of verl, MindSpeed, Megatron and mbridge, as types."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = [
    "AsyncRequest",
    "Bridge",
    "CheckpointManager",
    "Engine",
    "MindSpeedFeature",
    "MindSpeedPatch",
    "PatchesManager",
    "Repatch",
    "Role",
    "Roles",
    "Section",
]


class Section(Protocol):
    """A part of verl's configuration, for example the `megatron` section of a worker."""

    def get(self, key: str, default: object, /) -> object:
        """Return the value of `key`, or `default` if it is not set."""
        ...


class Role(Protocol):
    """The configuration of a worker with one role."""

    @property
    def megatron(self) -> Section: ...


class Roles(Protocol):
    """The configuration `actor_rollout_ref`, which an actor and a reference worker share."""

    @property
    def actor(self) -> Role: ...

    @property
    def ref(self) -> Role: ...

    def get(self, key: str, default: Mapping[str, Section], /) -> Mapping[str, Section]:
        """Return the configuration of the role `key`, or `default` if there is none."""
        ...


class Engine(Protocol):
    """An engine of upstream's."""

    engine_config: Section


class Bridge(Protocol):
    """A bridge of mbridge's."""

    save_weights: Callable[..., object]


class CheckpointManager(Protocol):
    """Upstream's manager of Megatron's checkpoints."""

    bridge: Bridge | None


class AsyncRequest(Protocol):
    """Megatron's named tuple of what is still to be written of a checkpoint."""

    async_fn: Callable[..., object] | None

    def _replace(self, *, async_fn: Callable[..., object]) -> AsyncRequest: ...


class MindSpeedPatch(Protocol):
    """One patch of MindSpeed's, as its patch manager keeps it."""

    orig_module: object
    orig_module_name: str
    orig_func_name: str | None
    orig_func: object
    final_patch_func: object
    is_applied: bool


class PatchesManager(Protocol):
    """MindSpeedPatchesManager: all patches of the process by the dotted names of their targets."""

    patches_info: dict[str, MindSpeedPatch]


class MindSpeedFeature(Protocol):
    """One of MindSpeed's features. `manager` only needs a method `register_patch`."""

    def is_need_apply(self, args: Namespace) -> bool: ...

    def pre_register_patches(self, manager: object, args: Namespace) -> None: ...

    def register_patches(self, manager: object, args: Namespace) -> None: ...


class Repatch(Protocol):
    """MindSpeed's function `repatch`."""

    def __call__(self, args: Mapping[str, object], /) -> object: ...
