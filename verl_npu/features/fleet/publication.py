"""Manifests of a job's processes, exchanged through Ray's key-value store."""

from __future__ import annotations

import json
import os

from ... import environment, reporting
from ...manifest import Manifest

__all__ = ["publish", "published"]

_NAMESPACE = b"verl_npu"


def publish(manifest: Manifest) -> None:
    """Put the manifest of this Ray worker where the other processes of its job find it."""
    try:
        from ray.experimental import internal_kv

        if internal_kv._internal_kv_initialized():
            key = f"{_job()}/{manifest['host']}-{manifest['pid']}-{manifest['token']}".encode()
            internal_kv._internal_kv_put(key, json.dumps(manifest).encode(), namespace=_NAMESPACE)
    except (ImportError, AttributeError) as error:
        # Ray promises no stable interface here. That must not end a worker; the comparison then lacks this process.
        reporting.warn(
            f"this version of Ray cannot store manifests ({error}): use {environment.MANIFEST_DIR.name} instead"
        )


def published() -> list[Manifest]:
    """Return the manifests of this job's Ray workers, and that of its driver if it was forwarded to this process."""
    from ray.experimental import internal_kv

    keys = internal_kv._internal_kv_list(f"{_job()}/".encode(), namespace=_NAMESPACE)
    values = [internal_kv._internal_kv_get(key, namespace=_NAMESPACE) for key in sorted(keys)]
    driver = os.environ.get(environment.DRIVER_MANIFEST.name)
    texts = [*([driver] if driver else []), *(value for value in values if value is not None)]
    manifests: list[Manifest] = [json.loads(text) for text in texts]
    return manifests


def _job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())
