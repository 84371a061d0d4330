"""A rollout engine for virtual NPUs: transformers' `generate` behind verl's own rollout interfaces. The engine is
needed because no vLLM that these revisions support runs on a CPU with the torch version that the virtual NPUs are
tested with. It is never used on real NPUs, because only the virtual Ascend registers it."""

from __future__ import annotations

from types import ModuleType

NAME = "virtual"


def register_rollout(base: ModuleType) -> None:
    """Add the virtual rollout engine to the registry of `verl.workers.rollout.base`, in each mode that this revision
    of verl has.

    If the installed version of verl has no such registry, use `offer_in_vllms_place`.
    """
    registry: dict[tuple[str, str], str] | None = getattr(base, "_ROLLOUT_REGISTRY", None)
    if registry is None:
        return
    if "sync" in {mode for _, mode in registry}:
        registry[(NAME, "sync")] = f"{__name__}.sync.VirtualRollout"
    registry[(NAME, "async")] = f"{__name__}.worker.VirtualServerAdapter"


def register_replica(replica: ModuleType) -> None:
    """Add the engine's server to the registry of `verl.workers.rollout.replica`, if that module has a registry."""
    registry = getattr(replica, "RolloutReplicaRegistry", None)
    if registry is None:
        return

    def load() -> type:
        from .server import VirtualReplica

        return VirtualReplica

    registry.register(NAME, load)


def offer_in_vllms_place(workers: ModuleType) -> None:
    """In versions of verl without a rollout registry (796871d7), make the workers create the rollout engine for
    virtual NPUs instead of vLLM's."""
    from verl.workers.rollout import base

    if not hasattr(base, "_ROLLOUT_REGISTRY"):
        from .spmd import offer

        offer(workers)
