"""Manifests of a job's Ray workers, through Ray's own key-value store."""

from __future__ import annotations

import json
import os

from ... import environment, reporting
from ...manifest import Manifest

__all__ = ["publish", "published"]

_NAMESPACE = b"verl_npu"


def publish(manifest: Manifest) -> None:
    """Give the manifest of this Ray worker to the others of its job."""
    try:
        from ray.experimental import internal_kv

        if internal_kv._internal_kv_initialized():
            key = f"{_job()}/{manifest['host']}-{manifest['pid']}-{manifest['token']}".encode()
            internal_kv._internal_kv_put(key, json.dumps(manifest).encode(), namespace=_NAMESPACE)
    except (ImportError, AttributeError) as error:
        # Ray promises no stable interface here; a worker must not die of it, and the comparison will miss it by name.
        reporting.warn(f"this Ray keeps no manifests for us ({error}): use VERL_NPU_MANIFEST_DIR instead")


def published() -> list[Manifest]:
    """Return the manifests of this job's Ray workers, and of its driver if that handed its own down."""
    from ray.experimental import internal_kv

    keys = internal_kv._internal_kv_list(f"{_job()}/".encode(), namespace=_NAMESPACE)
    values = [internal_kv._internal_kv_get(key, namespace=_NAMESPACE) for key in sorted(keys)]
    workers = [json.loads(value) for value in values if value is not None]
    driver = os.environ.get(environment.DRIVER_MANIFEST.name)
    return [*([json.loads(driver)] if driver else []), *workers]


def _job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())
