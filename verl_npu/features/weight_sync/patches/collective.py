"""Groups of Ray actors for weight syncs over HCCL. They replace the groups of `ray.util.collective.collective`.

In upstream's modules, this module replaces Ray's module. So its function has the name and signature of Ray's function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ....errors import GroupError
from ..settings import Settings
from ..transport import group
from ..transport.messages import Meeting, open_meeting

_BACKENDS = ("nccl", "hccl")


def create_collective_group(
    actors: Sequence[Any],
    world_size: int,
    ranks: Sequence[int],
    backend: object = "nccl",
    group_name: str = "default",
    **unused: object,
) -> None:
    """Create a group of Ray actors for weight syncs. The first actor is rank 0 and sends the weights.

    The caller may be a process that sees no NPU. In such a process, upstream chooses `nccl`, so this function treats
    `nccl` as `hccl`. If a rank does not join, raises a GroupError that names the rank.
    """
    import ray

    name = str(getattr(backend, "value", backend)).lower()
    if name not in _BACKENDS:
        raise GroupError(
            subject=f"weight sync group {group_name!r}",
            expected="the backend 'hccl'",
            found=f"the backend {name!r}",
            fix="do not override the backend that the recipe sets",
        )
    if list(ranks) != list(range(world_size)) or len(actors) != world_size:
        raise GroupError(
            subject=f"weight sync group {group_name!r}",
            expected=f"{world_size} actors with the ranks 0 to {world_size - 1} in order",
            found=f"{len(actors)} actors with the ranks {list(ranks)}",
            fix="give each actor one rank, and give rank 0 to the first trainer",
        )
    settings = Settings.from_environment()
    meeting = ray.get(actors[0].__ray_call__.remote(_open, group_name, settings))
    ray.get(
        [
            actor.__ray_call__.remote(_join, group_name, meeting, rank, world_size, settings)
            for rank, actor in enumerate(actors)
        ]
    )


@contextmanager
def in_place_of_ray() -> Iterator[None]:
    """Context manager that replaces Ray's `create_collective_group` with verl-npu's function.

    The function is replaced in Ray's module, because upstream imports it inside a function.
    """
    from ray.util.collective import collective

    before = collective.create_collective_group
    collective.create_collective_group = create_collective_group
    try:
        yield
    finally:
        collective.create_collective_group = before


def _open(worker: object, name: str, settings: Settings) -> Meeting:
    import ray

    group.refuse_second(name)
    return open_meeting(ray.util.get_node_ip_address(), settings.port, settings.timeout)


def _join(worker: object, name: str, meeting: Meeting, rank: int, size: int, settings: Settings) -> None:
    import torch

    # verl puts the workers of all roles that share an NPU into one actor.
    roles = tuple(getattr(worker, "worker_dict", ()))
    group.join(
        name,
        meeting,
        rank,
        size,
        timeout=settings.timeout,
        device=torch.device("npu", torch.npu.current_device()),
        # Only the first trainer sends. The other trainers gather their shards together with the first.
        moves="actor" not in roles,
        label="+".join(roles),
    )
