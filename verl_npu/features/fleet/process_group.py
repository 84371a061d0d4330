"""The ranks of a job that torchrun started, and their manifests in the store of its process group.

There is no Ray in such a job. The store is the one at which the ranks met, so it reaches all of them, on every host.
It is read and written without a collective: a rank that is not patched takes no part, and is not waited for for long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, cast

from ...manifest import Manifest
from .reading import Reading

__all__ = ["join", "joined", "put", "read", "running"]

_SECONDS = 60.0
"""How long the manifests of ranks may take that have met already; they tell them at once."""

_joined = False


class Store(Protocol):
    """torch's store."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: Sequence[str]) -> bool: ...
    def wait(self, keys: Sequence[str], timeout: timedelta) -> None: ...


def join() -> None:
    """Note that this process has met the other ranks, which are all told its manifest from now on."""
    global _joined
    _joined = True


def running() -> bool:
    """Whether this process is one of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return int(distributed.get_world_size()) > 1


def joined() -> bool:
    """Whether this process is a rank that tells the others its manifest."""
    return _joined and running()


def put(manifest: Manifest) -> None:
    """Store the manifest of this rank; a later one takes its place."""
    import torch.distributed

    _store().set(_key(torch.distributed.get_rank()), json.dumps(manifest))


def read() -> Reading:
    """Return the manifests of all ranks, and which ranks told none."""
    import torch.distributed

    store, ranks = _store(), range(torch.distributed.get_world_size())
    own = torch.distributed.get_rank()
    others = [rank for rank in ranks if rank != own]
    if _joined:
        _wait(store, [_key(rank) for rank in others])
    told = [rank for rank in others if store.check([_key(rank)])]
    return Reading(
        manifests=[json.loads(store.get(_key(rank))) for rank in told],
        missing=[f"rank {rank}" for rank in others if rank not in told],
    )


def _wait(store: Store, keys: Sequence[str]) -> None:
    try:
        store.wait(keys, timedelta(seconds=_SECONDS))
    except RuntimeError:
        # In time or not, what is there is read next.
        return


def _store() -> Store:
    from torch.distributed import distributed_c10d

    return cast(Store, distributed_c10d._get_default_store())


def _key(rank: int) -> str:
    return f"verl_npu/manifest/{rank}"
