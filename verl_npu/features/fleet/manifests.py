"""Exchange of manifests between a job's processes: each publishes its own, and the training process reads them all.

Under Ray, the manifests are in Ray's key-value store. Ray promises no stable interface for that store, so an error
there does not end the job, but becomes a line for the user. Ranks that torchrun started use the store of their
rendezvous, which all ranks can reach from every host. We do not use collectives for this. A rank without the patches
would not take part in them, and we do not want to wait long for such a rank.

Neither store authenticates its writers, and a secret would not help. Under Ray, anybody who reaches the store can run
code in the job, and can read there what the driver passes to its workers. Under torchrun, there is no driver that
could distribute a secret. So we do not trust what we read. Data that is not a manifest becomes a line for the user,
and all text is cleaned before it is shown.
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
_TIMEOUT_SECONDS = 60.0
"""How long to wait for the manifests of the other ranks. Each rank publishes its manifest when it joins the group."""

_joined = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The manifests of a job's processes, and the reasons for which others are missing."""

    manifests: Sequence[Manifest] = field(default=())
    missing: Sequence[str] = field(default=())
    """The processes that published no manifest, under names that the user knows."""
    wrong: Sequence[str] = field(default=())
    """One line for each published text that is not a manifest."""
    unreadable: str = ""
    """The reason why the manifests of the other processes could not be read. Empty if they could be read."""


def join() -> None:
    """Record that this process has joined the other ranks. From now on, it publishes its manifest to them."""
    global _joined
    _joined = True


def publish() -> None:
    """Publish the manifest of this process to the other processes of its job, if there are any. This never raises an
    error."""
    try:
        if process.is_ray_worker():
            _put_into_ray()
        elif _joined and _is_rank():
            _put_into_group()
    except Exception as error:
        # An import or upstream's own code called us and must go on. The comparison will report that the manifest of
        # this process is missing.
        reporting.warn(f"this process could not publish its manifest to the others: {type(error).__name__}: {error}")


def published() -> Reading:
    """Return the manifests of this job's processes, including this one. This never raises an error."""
    own = manifest()
    found: Sequence[tuple[str, bytes]] = ()
    missing: Sequence[str] = ()
    unreadable = ""
    try:
        if _is_in_ray():
            found, missing = _read_from_ray()
        elif _is_rank():
            found, missing = _read_from_group()
    except Exception as error:
        # No error here may end a job that did not ask for VERL_NPU_STRICT.
        unreadable = f"{type(error).__name__}: {error}"
    others, wrong = [], []
    for who, data in found:
        try:
            others.append(decoded(data, f"the manifest of {who}"))
        except SourceError as error:
            wrong.append(f"{error.subject} cannot be read: {error.found}")
    # This process may have published its manifest earlier, or not at all.
    others = [each for each in others if _identity(each) != _identity(own)]
    return Reading([*others, own], missing, tuple(wrong), unreadable)


def _identity(manifest: Manifest) -> tuple[str, int, str]:
    return manifest["host"], manifest["pid"], manifest["token"]


# Under Ray.


def _is_in_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _put_into_ray() -> None:
    """Store the manifest of this Ray worker. It replaces the worker's earlier manifest."""
    import ray
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_initialized():
        key = _prefix() + str(ray.get_runtime_context().get_worker_id())
        internal_kv._internal_kv_put(key.encode(), encoded(manifest()), namespace=_NAMESPACE)


def _read_from_ray() -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return the published manifests, each with the name of its process, and the workers that published none.

    The driver's manifest is included if the driver passed it to this process.
    """
    from ray.experimental import internal_kv

    prefix = _prefix().encode()
    keys = sorted(internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE))
    workers = {key.removeprefix(prefix).decode(errors="replace"): key for key in keys}
    driver = os.environ.get(environment.DRIVER_MANIFEST.name)
    found = [("the driver", unpacked(driver))] if driver else []
    for worker, key in workers.items():
        value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if value is not None:
            found.append((f"the worker {worker}", bytes(value)))
    return found, [label for worker, label in _workers_on_npus() if worker not in workers]


def _workers_on_npus() -> Iterator[tuple[str, str]]:
    """Yield the id and the label of each worker of this job that runs upstream's code on an NPU.

    Only these workers are certain to import upstream. Ray sends an actor's class by value, so some actors never import
    verl and have no manifest, for example the message queue of an asynchronous trainer.
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
        # In a placement group, the resource is also called NPU_group_….
        on_npu = any(name.partition("_")[0] == "NPU" for name in actor.required_resources)
        if on_npu and module.partition(".")[0] in packages:
            yield actor.address.worker_id.hex(), f"{actor.class_name} {actor.address.ip_address}:{actor.pid}"


def _prefix() -> str:
    import ray

    return f"{ray.get_runtime_context().get_job_id()}/"


# Between ranks of torchrun.


def _is_rank() -> bool:
    """Return whether this process is one of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return int(distributed.get_world_size()) > 1


def _put_into_group() -> None:
    """Store the manifest of this rank. It replaces the rank's earlier manifest."""
    import torch.distributed

    _store().set(_key(torch.distributed.get_rank()), encoded(manifest()).decode())


def _read_from_group() -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return the manifests of the other ranks, and the ranks that published none."""
    import torch.distributed

    store, own = _store(), torch.distributed.get_rank()
    others = [rank for rank in range(torch.distributed.get_world_size()) if rank != own]
    if _joined:
        # After a timeout we read the manifests that are there.
        with contextlib.suppress(RuntimeError):
            store.wait([_key(rank) for rank in others], timedelta(seconds=_TIMEOUT_SECONDS))
    found = [rank for rank in others if store.check([_key(rank)])]
    missing = [f"rank {rank}" for rank in others if rank not in found]
    return [(f"rank {rank}", bytes(store.get(_key(rank)))) for rank in found], missing


def _store() -> Any:
    """Return the store of the ranks' rendezvous. It is untyped, because torch declares text where the store returns
    bytes."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"verl_npu/manifest/{rank}"
