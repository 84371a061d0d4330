"""The trainer's weights after they were handed to the rollout: upstream sent them to the host whatever was set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import rollout

__all__: list[str] = []

_UPDATE = "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights"
_WAKE = "verl.workers.engine_workers:ActorRolloutRefWorker.wake_up"
_LINK = "https://github.com/verl-project/verl/pull/5604"
_WHY = (
    "With use_legacy_worker_impl=disable and param_offload=False the first log-probabilities end with AssertionError: "
    "Expects tensor to be on the compute device npu:0, was on cpu. After each hand-over upstream moves the trainer's "
    "weights to the host, and brings them back only if offloading is on."
)
_HOW = "They stay on the NPU unless offloading is on."

Result = TypeVar("Result")


class Engine(Protocol):
    """Upstream's training engine."""

    is_param_offload_enabled: bool

    def to(self, device: str, *args: object, **kwargs: object) -> object: ...


class Actor(Protocol):
    engine: Engine


class Worker(Protocol):
    actor: Actor | None


@rollout.wrap(
    _UPDATE,
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=Mentions(_UPDATE, "is_param_offload_enabled"),
    requires=AllOf(Defines(_UPDATE), Mentions(_UPDATE, "aggressive_empty_cache")),
)
async def keep_weights_that_are_not_offloaded(
    original: Callable[..., Awaitable[Result]], worker: Worker, *args: object, **kwargs: object
) -> Result:
    """Hand the weights over."""
    return await _staying(original, worker, *args, **kwargs)


@rollout.wrap(
    _WAKE,
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=Mentions(_WAKE, "is_param_offload_enabled"),
    requires=Mentions(_WAKE, "aggressive_empty_cache"),
)
async def keep_weights_that_are_not_offloaded_on_waking(
    original: Callable[..., Awaitable[Result]], worker: Worker, *args: object, **kwargs: object
) -> Result:
    """Wake the rollout, and hand the weights over."""
    return await _staying(original, worker, *args, **kwargs)


async def _staying(
    original: Callable[..., Awaitable[Result]], worker: Worker, *args: object, **kwargs: object
) -> Result:
    engine = getattr(worker.actor, "engine", None)
    if engine is None or engine.is_param_offload_enabled:
        return await original(worker, *args, **kwargs)
    move = engine.to

    def unless_to_the_host(device: str, *args: object, **kwargs: object) -> object:
        return None if device == "cpu" else move(device, *args, **kwargs)

    engine.to = unless_to_the_host  # of this object, until the hand-over is done
    try:
        return await original(worker, *args, **kwargs)
    finally:
        del engine.to
