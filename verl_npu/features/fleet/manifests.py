"""The manifests of a job's processes: each is told by its process, and read by the one that is about to train.

Over Ray they are in Ray's key-value store. Ray promises no stable interface for it, so whatever it raises here is
turned into a line for the user. Ranks that torchrun started have theirs in the store at which they met, which reaches
all of them on every host. It is read and written without a collective: a rank that is not patched takes no part, and
is not waited for for long.

Neither store asks who writes to it, and no secret could: whoever reaches Ray's runs anything in the job anyway, and
finds there what its driver tells its workers; ranks of torchrun have no driver that could tell them one. So whatever
is read is taken for a stranger's: what is no manifest is said in a line, and no text is shown as it came.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ... import environment, process, reporting
from ...errors import SourceError
from ...manifest import Manifest, decoded, encoded, manifest, unpacked
from ..upstreams import UPSTREAMS

_NAMESPACE = b"verl_npu"
_SECONDS = 60.0
"""How long the manifests of ranks may take that have met already; they tell them at once."""

_joined = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The manifests of a job's processes, and what is known of those that told none."""

    manifests: Sequence[Manifest] = field(default=())
    missing: Sequence[str] = field(default=())
    """The processes whose manifest is not there, as a user knows them."""
    wrong: Sequence[str] = field(default=())
    """What is in the place of a manifest and is none, a line for each."""
    unreadable: str = ""
    """Why the manifests of the other processes could not be read; empty if they were."""


def join() -> None:
    """Note that this process has met the other ranks, which are all told its manifest from now on."""
    global _joined
    _joined = True


def publish() -> None:
    """Put the manifest of this process where the others of its job find it, if it has others. Raises nothing."""
    try:
        if process.is_ray_worker():
            _put_into_ray()
        elif _joined and _is_rank():
            _put_into_group()
    except Exception as error:
        # It comes from an import or from upstream's own code, which it must not end: the comparison says that the
        # manifest of this process is missing.
        reporting.warn(
            f"the manifest of this process could not be told to the others: {type(error).__name__}: {error}"
        )


def published() -> Reading:
    """Return the manifests of this job's processes, this one's among them. Raises nothing."""
    own = manifest()
    told: Sequence[tuple[str, bytes]] = ()
    missing: Sequence[str] = ()
    unreadable = ""
    try:
        if _is_in_ray():
            told, missing = _read_from_ray()
        elif _is_rank():
            told, missing = _read_from_group()
    except Exception as error:
        # Whatever it is, it is no reason of ours to end a job that does not ask for strict.
        unreadable = f"{type(error).__name__}: {error}"
    others, wrong = [], []
    for who, data in told:
        try:
            others.append(decoded(data, f"the manifest of {who}"))
        except SourceError as error:
            wrong.append(f"{error.subject} is none: {error.found}")
    # This process may have told its manifest earlier, or not at all.
    others = [each for each in others if _identity(each) != _identity(own)]
    return Reading([*others, own], missing, tuple(wrong), unreadable)


def _identity(manifest: Manifest) -> tuple[str, int, str]:
    return manifest["host"], manifest["pid"], manifest["token"]


# Over Ray.


def _is_in_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _put_into_ray() -> None:
    """Store the manifest of this Ray worker; a later one of the same worker takes its place."""
    import ray
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_initialized():
        key = _prefix() + str(ray.get_runtime_context().get_worker_id())
        internal_kv._internal_kv_put(key.encode(), encoded(manifest()), namespace=_NAMESPACE)


def _read_from_ray() -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return who told what, this job's workers and its driver if that was forwarded, and which worker told nothing."""
    from ray.experimental import internal_kv

    prefix = _prefix().encode()
    keys = sorted(internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE))
    workers = {key.removeprefix(prefix).decode(errors="replace"): key for key in keys}
    driver = os.environ.get(environment.DRIVER_MANIFEST.name)
    told = [("the driver", unpacked(driver))] if driver else []
    for worker, key in workers.items():
        value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if value is not None:
            told.append((f"the worker {worker}", bytes(value)))
    return told, [label for worker, label in _workers_on_npus() if worker not in workers]


def _workers_on_npus() -> Iterator[tuple[str, str]]:
    """Yield the identifier and the label of each worker of this job that runs upstream's code on an NPU.

    Only these are sure to import upstream: Ray gives the class of an actor to its process by value, so that the
    message queue of an asynchronous trainer, for instance, never imports verl and has no manifest.
    """
    import ray
    from ray._private.state import state
    from ray.core.generated import gcs_pb2

    packages = {package for upstream in UPSTREAMS for package in upstream.packages}
    job = bytes.fromhex(ray.get_runtime_context().get_job_id())
    state._check_connected()
    for serialized in state.global_state_accessor.get_actor_table(None, None):
        actor = gcs_pb2.ActorTableData.FromString(serialized)
        if actor.job_id != job or actor.state != gcs_pb2.ActorTableData.ALIVE:
            continue
        module = actor.function_descriptor.python_function_descriptor.module_name
        # In a placement group the resource is called NPU_group_… as well.
        on_npu = any(name.partition("_")[0] == "NPU" for name in actor.required_resources)
        if on_npu and module.partition(".")[0] in packages:
            yield actor.address.worker_id.hex(), f"{actor.class_name} {actor.address.ip_address}:{actor.pid}"


def _prefix() -> str:
    import ray

    return f"{ray.get_runtime_context().get_job_id()}/"


# Between ranks that torchrun started.


def _is_rank() -> bool:
    """Whether this process is one of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return int(distributed.get_world_size()) > 1


def _put_into_group() -> None:
    """Store the manifest of this rank; a later one takes its place."""
    import torch.distributed

    _store().set(_key(torch.distributed.get_rank()), encoded(manifest()).decode())


def _read_from_group() -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return the manifests that the other ranks told, and which of them told none."""
    import torch.distributed

    store, own = _store(), torch.distributed.get_rank()
    others = [rank for rank in range(torch.distributed.get_world_size()) if rank != own]
    if _joined:
        # In time or not, what is there is read next.
        with contextlib.suppress(RuntimeError):
            store.wait([_key(rank) for rank in others], timedelta(seconds=_SECONDS))
    told = [rank for rank in others if store.check([_key(rank)])]
    missing = [f"rank {rank}" for rank in others if rank not in told]
    return [(f"rank {rank}", bytes(store.get(_key(rank)))) for rank in told], missing


def _store() -> Any:
    """Return torch's store, at which the ranks met; its types say text where it gives bytes."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"verl_npu/manifest/{rank}"
