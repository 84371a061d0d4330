"""The processes of a job on Ray, and their manifests in Ray's key-value store.

Ray promises no stable interface for either. What it raises here, the callers turn into a line for the user.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from ... import environment
from ...manifest import Manifest
from ..upstreams import UPSTREAMS
from .reading import Reading

__all__ = ["put", "read", "running"]

_NAMESPACE = b"verl_npu"


def running() -> bool:
    """Whether this process belongs to a job on Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def put(manifest: Manifest) -> None:
    """Store the manifest of this Ray worker; a later one of the same worker takes its place."""
    import ray
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_initialized():
        key = _prefix() + str(ray.get_runtime_context().get_worker_id())
        internal_kv._internal_kv_put(key.encode(), json.dumps(manifest).encode(), namespace=_NAMESPACE)


def read() -> Reading:
    """Return the manifests of this job's workers, that of its driver if it was forwarded, and who told none."""
    from ray.experimental import internal_kv

    prefix = _prefix().encode()
    keys = sorted(internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE))
    values = [internal_kv._internal_kv_get(key, namespace=_NAMESPACE) for key in keys]
    driver = os.environ.get(environment.DRIVER_MANIFEST.name)
    texts = [*([driver] if driver else []), *(value for value in values if value is not None)]
    told = {key.removeprefix(prefix).decode() for key in keys}
    return Reading(
        manifests=[json.loads(text) for text in texts],
        missing=[label for worker, label in _workers_on_npus() if worker not in told],
    )


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
