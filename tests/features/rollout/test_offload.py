"""The trainer's weights after a hand-over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from verl_npu.features.rollout.patches import (
    keep_weights_that_are_not_offloaded,
    keep_weights_that_are_not_offloaded_on_waking,
)

PATCHES = [keep_weights_that_are_not_offloaded, keep_weights_that_are_not_offloaded_on_waking]


class Engine:
    def __init__(self, offloads: bool) -> None:
        self.is_param_offload_enabled = offloads
        self.device = "npu"

    def to(self, device: str, model: bool = True) -> None:
        self.device = device


async def upstreams(worker: SimpleNamespace, fails: bool = False) -> str:
    worker.actor.engine.to("npu", model=True)
    worker.actor.engine.to("cpu", model=True)
    if fails:
        raise RuntimeError("the rollout is gone")
    return "done"


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize(("offloads", "device"), [(False, "npu"), (True, "cpu")])
def test_weights_go_to_the_host_only_if_they_are_offloaded(patch, offloads: bool, device: str) -> None:
    engine = Engine(offloads)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=engine))
    assert asyncio.run(patch(upstreams, worker)) == "done"
    assert engine.device == device


def test_after_a_hand_over_the_engine_moves_as_before() -> None:
    engine = Engine(False)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=engine))
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(keep_weights_that_are_not_offloaded(upstreams, worker, fails=True))
    engine.to("cpu")
    assert engine.device == "cpu"


def test_a_worker_without_an_actor_is_left_to_upstream() -> None:
    async def without(worker: SimpleNamespace) -> str:
        return "done"

    assert asyncio.run(keep_weights_that_are_not_offloaded(without, SimpleNamespace(actor=None))) == "done"
