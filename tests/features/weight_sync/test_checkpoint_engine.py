"""verl's own checkpoint engine, over a communicator that may be disabled and cannot be destroyed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_npu.features.weight_sync.checkpoint_engine import connected, dropped
from verl_npu.features.weight_sync.errors import GroupError


def engine(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"group_name": "g", "rank": 1, "world_size": 2, "rebuild_group": True, **facts})


def test_a_disabled_communicator_is_an_error() -> None:
    with pytest.raises(GroupError, match="rank 1 of 2: PyHccl is disabled"):
        connected(lambda engine: None, engine(pyhccl=SimpleNamespace(disabled=True)))


@pytest.mark.parametrize("communicator", [SimpleNamespace(disabled=False), None])
def test_a_working_one_and_a_rank_without_one_pass(communicator: Any) -> None:
    assert connected(lambda engine: "made", engine(pyhccl=communicator)) == "made"


def upstreams(engine: Any) -> None:
    engine.pyhccl.destroyComm(engine.pyhccl.comm)
    engine.pyhccl = None


def test_a_communicator_that_cannot_be_destroyed_is_dropped() -> None:
    ended = engine(pyhccl=SimpleNamespace(comm=1))
    dropped(upstreams, ended)
    assert ended.pyhccl is None


def test_one_that_can_be_destroyed_is() -> None:
    destroyed: list[Any] = []
    dropped(upstreams, engine(pyhccl=SimpleNamespace(comm="c", destroyComm=destroyed.append)))
    assert destroyed == ["c"]
