"""A rollout engine for virtual NPUs: transformers' `generate` behind verl's own rollout contracts.

No vLLM that these revisions take runs on a CPU beside the torch that the virtual NPUs are tested with. Never used on
real NPUs: only the virtual Ascend has it registered.
"""

from __future__ import annotations

from types import ModuleType

__all__ = ["NAME", "offer_in_vllms_place", "register_replica", "register_rollout"]

NAME = "virtual"


def register_rollout(base: ModuleType) -> None:
    """Enter the engine into the registry of `verl.workers.rollout.base`, in each mode that the revision has.

    A verl without that registry is served by `offer_in_vllms_place`.
    """
    registry: dict[tuple[str, str], str] | None = getattr(base, "_ROLLOUT_REGISTRY", None)
    if registry is None:
        return
    if "sync" in {mode for _, mode in registry}:
        registry[(NAME, "sync")] = f"{__name__}.sync.VirtualRollout"
    registry[(NAME, "async")] = f"{__name__}.worker.VirtualServerAdapter"


def register_replica(replica: ModuleType) -> None:
    """Enter the server into the registry of `verl.workers.rollout.replica`, if any."""
    registry = getattr(replica, "RolloutReplicaRegistry", None)
    if registry is None:
        return

    def load() -> type:
        from .server import VirtualReplica

        return VirtualReplica

    registry.register(NAME, load)


def offer_in_vllms_place(workers: ModuleType) -> None:
    """Let workers build the engine that have no registry to find it in (796871d7)."""
    from verl.workers.rollout import base

    if not hasattr(base, "_ROLLOUT_REGISTRY"):
        from .spmd import offer

        offer(workers)
