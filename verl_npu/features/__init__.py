"""What we change upstream, one folder a feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import environment
from ..registry.apply.engine import Registry
from ..registry.judge.verdict import Policy
from ..registry.patch import Feature
from .upstreams import PATCH_MODULES, UPSTREAMS, locks_folder

__all__ = ["PATCH_MODULES", "UPSTREAMS", "load", "locks_folder", "make_registry"]


def load() -> Sequence[Feature]:
    """All features. Imports none of the upstreams."""
    from .attention import attention
    from .device import device
    from .fleet import fleet
    from .fused_ops import fused_ops
    from .host_copies import host_copies
    from .megatron import megatron
    from .micro_batches import micro_batches
    from .rollout import rollout
    from .weight_sync import weight_sync

    return (device, host_copies, attention, fused_ops, micro_batches, rollout, weight_sync, megatron, fleet)


def make_registry(warn: Callable[[str], None], changed: Callable[[Registry], None]) -> Registry:
    """The registry of verl-npu in this process, not active yet. Raises SettingError for a switch that is wrong."""
    return Registry(
        trigger="verl",
        upstreams=UPSTREAMS,
        features=load,
        locks=locks_folder(),
        policy=Policy(
            prefix="VERL_NPU",
            command="verl-npu",
            strict=environment.STRICT.read(),
            force=environment.FORCE.read(),
            disable=environment.DISABLE.read(),
        ),
        warn=warn,
        changed=changed,
        patch_modules=PATCH_MODULES,
    )
