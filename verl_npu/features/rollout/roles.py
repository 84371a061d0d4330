"""The resource pool of a recipe's actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ...registry.source.probe import Defines, Never
from .feature import rollout

__all__: list[str] = []

_POOLS = "verl.trainer.main_ppo:TaskRunner.init_resource_pool_mgr"
_POOL = "global_pool"

Result = TypeVar("Result")


class Runner(Protocol):
    """Upstream's task runner: which worker has each role, and in which pool."""

    role_worker_mapping: dict[object, object]
    mapping: dict[object, str]


@rollout.wrap(
    _POOLS,
    why="The recipe r1_ascend, for DeepSeek-V3 on NPUs, ends with KeyError: <Role.ActorRollout: 2> before any model "
    "is built: since upstream's trainer has its pools set role by role, the recipe's own method sets none.",
    how="A role with a worker and no pool is put into upstream's one pool, as its other roles are.",
    link="none: nobody seems to have reported it",
    retired_by=Never("the recipe was removed without it"),
    requires=Defines(_POOLS),
)
def give_the_recipes_actor_a_pool(original: Callable[..., Result], runner: Runner, config: object) -> Result:
    """Make the pools, after each role has one."""
    for role in runner.role_worker_mapping:
        runner.mapping.setdefault(role, _POOL)
    return original(runner, config)
