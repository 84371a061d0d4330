"""Patches of verl's own HCCL checkpoint engine, which syncs weights from v0.7.1 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...registry.probe import AllOf, Defines, Mentions, Not
from .errors import GroupError
from .feature import weight_sync

_ENGINE = "verl.checkpoint_engine.hccl_checkpoint_engine:HCCLCheckpointEngine"


@weight_sync.wrap(
    f"{_ENGINE}.init_process_group",
    why="vllm-ascend's PyHccl disables itself where it finds no libhccl, and then broadcasts nothing without an error",
    how="a communicator that is disabled is an error before the first sync",
    link="https://github.com/vllm-project/vllm-ascend/issues/942",
    retired_by=Mentions(f"{_ENGINE}.init_process_group", "disabled"),
    requires=Defines(f"{_ENGINE}.init_process_group"),
)
def connected(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the group. Raises GroupError where its communicator would move nothing."""
    made = original(engine, *args, **kwargs)
    if engine.pyhccl is not None and getattr(engine.pyhccl, "disabled", False):
        raise GroupError(
            f"checkpoint engine {engine.group_name!r}, rank {engine.rank} of {engine.world_size}: PyHccl is disabled "
            "and would broadcast nothing: libhccl.so did not load (set HCCL_SO_PATH), or there is one rank only"
        )
    return made


@weight_sync.wrap(
    f"{_ENGINE}.finalize",
    why="with rebuild_group it calls destroyComm, which vllm-ascend's PyHccl does not have: the job dies after a sync",
    how="such a communicator is dropped, as vllm-ascend's own weight transfer does",
    link="none: nobody seems to have reported it; rebuild_group is off by default",
    retired_by=AllOf(Defines(f"{_ENGINE}.finalize"), Not(Mentions(f"{_ENGINE}.finalize", "destroyComm"))),
    requires=Defines(f"{_ENGINE}.finalize"),
)
def dropped(original: Callable[..., Any], engine: Any) -> Any:
    """End a sync, and with rebuild_group the group."""
    if engine.rebuild_group and engine.pyhccl is not None and not hasattr(engine.pyhccl, "destroyComm"):
        engine.pyhccl = _Dropped()
    return original(engine)


class _Dropped:
    """Stands where a communicator was that has no way to be destroyed but to be forgotten."""

    comm = None

    def destroyComm(self, comm: None) -> None:
        """Nothing is left to destroy."""
