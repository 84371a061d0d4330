"""A RayJob: the manifest that KubeRay uses to start a training job on several machines. Either all machines start or
none.

Written for KubeRay 1.7.0, Volcano with Ascend's plugin, and Ascend's device plugin (github.com/Ascend/mind-cluster at
22bb3d98). It follows "KubeRay integration with Volcano" and "Specify container commands" on docs.ray.io, and Ascend's
docs/en/scheduling/usage/basic_scheduling/03_full_npu_scheduling_….md.
"""

from __future__ import annotations

import json
import shlex

from verl_npu.ascend.variables import HCCL_INTERFACE, ON_EVERY_HOST

from .container import FILES, SHARED_MEMORY, SHARED_MEMORY_GIB
from .job import Job

RESOURCE = "huawei.com/Ascend910"
"""The resource name that Ascend's device plugin gives to an NPU of an A2 or an A3
(component/ascend-common/api/default_name.go)."""

_SET_ENV = (
    # KubeRay replaces the image's entry point, which would do this. It runs these commands before its `ray start`.
    "source /usr/local/Ascend/ascend-toolkit/set_env.sh && source /usr/local/Ascend/nnal/atb/set_env.sh"
)
_VARIABLES = {advice.name: advice.value for advice in ON_EVERY_HOST}
_HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}


def manifest(asked: Job) -> dict[str, object]:
    """Return the RayJob as the content of a YAML file."""
    server = asked.container.server
    annotations = {"huawei.com/schedule_policy": server.policy}
    if server.super_pod:
        # The number of NPUs that must be in one SuperPoD; this is the least that the scheduler accepts.
        annotations["sp-block"] = str(asked.container.npus)
    workers: list[dict[str, object]] = []
    if asked.nodes > 1:
        count = asked.nodes - 1
        workers.append(
            {
                "groupName": "workers",
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": _start(asked),
                "template": _template(asked, "ray-worker", {}),
            }
        )
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": asked.name,
            "labels": {"volcano.sh/queue-name": asked.queue},
            "annotations": annotations,
        },
        "spec": {
            "entrypoint": shlex.join(asked.command),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 300,
            "backoffLimit": 0,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0", **_start(asked)},
                    "template": _template(asked, "ray-head", _HEAD_PORTS),
                },
                "workerGroupSpecs": workers,
            },
        },
    }


def _start(asked: Job) -> dict[str, str]:
    # KubeRay tells Ray about GPUs and TPUs, but not about NPUs. The quotes are for bash.
    return {"resources": f"'{json.dumps({'NPU': asked.container.npus})}'"}


def _template(asked: Job, name: str, ports: dict[str, int]) -> dict[str, object]:
    made = asked.container
    npus = {RESOURCE: made.npus}
    label = {"verl-npu/job": asked.name}
    container: dict[str, object] = {
        "name": name,
        "image": made.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [_SET_ENV],
        "env": _environment(asked),
        "resources": {"requests": dict(npus), "limits": dict(npus)},
        "volumeMounts": _mounts(asked),
    }
    if ports:
        container["ports"] = [{"name": each, "containerPort": port} for each, port in ports.items()]
    return {
        "metadata": {"labels": {**label, "ring-controller.atlas": "ascend-910b"}},
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "nodeSelector": {"accelerator-type": made.server.label},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_apart(label)]}},
            "containers": [container],
            "volumes": _volumes(asked),
        },
    }


def _apart(label: dict[str, str]) -> dict[str, object]:
    # Two pods on one machine would use the same ports.
    return {"labelSelector": {"matchLabels": dict(label)}, "topologyKey": "kubernetes.io/hostname"}


def _environment(asked: Job) -> list[dict[str, object]]:
    # Ascend's device plugin and container runtime read this to get the NPUs that the scheduler chose.
    made = [_pod_field("ASCEND_VISIBLE_DEVICES", f"metadata.annotations['{RESOURCE}']")]
    fixed = dict(_VARIABLES)
    if asked.interface:
        # Without = HCCL reads the name as a prefix.
        fixed |= {HCCL_INTERFACE: f"={asked.interface}", "GLOO_SOCKET_IFNAME": asked.interface}
    else:
        # hostNetwork needs one of the two, and the address would override the interface.
        made.append(_pod_field("HCCL_IF_IP", "status.hostIP"))
    made += ({"name": name, "value": value} for name, value in fixed.items())
    return made


def _pod_field(name: str, field: str) -> dict[str, object]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _mounts(asked: Job) -> list[dict[str, object]]:
    made: list[dict[str, object]] = [{"name": "shared-memory", "mountPath": SHARED_MEMORY}]
    made += ({"name": file.volume, "mountPath": file.path, "readOnly": True} for file in FILES)
    made += ({"name": each.volume, "mountPath": each.path} for each in asked.claims)
    return made


def _volumes(asked: Job) -> list[dict[str, object]]:
    made: list[dict[str, object]] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}}
    ]
    for file in FILES:
        kind = "Directory" if file.folder else "File"
        made.append({"name": file.volume, "hostPath": {"path": file.path, "type": kind}})
    # A claim may be mounted at several paths but is only one volume.
    for name, volume in {each.name: each.volume for each in asked.claims}.items():
        made.append({"name": volume, "persistentVolumeClaim": {"claimName": name}})
    return made
