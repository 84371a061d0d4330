"""The RayJob fits KubeRay's own schema, and has the fields that Ascend's scheduler and device plugin read."""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from verl_npu_workbench.installation.container import FILES, SERVERS, container
from verl_npu_workbench.installation.job import Claim, Job, job
from verl_npu_workbench.installation.rayjob import RESOURCE, manifest
from verl_npu_workbench.installation.target import Arch, Target
from verl_npu_workbench.pins import PINS

from verl_npu.errors import CommandError

from .crd import Schema

KUBERAY = "kuberay-v1.7.0"
COMMAND = ("bash", "run.sh", "data.train_files=['/data/a b.parquet']")
JOBS = [(server, nodes) for server in SERVERS for nodes in (1, 2, 16)]

NIGHTLY = pytest.mark.nightly("verl_npu_workbench/installation/")
every = pytest.mark.parametrize(
    ("server", "nodes"), [pytest.param(*each, marks=() if each == ("a3", 2) else NIGHTLY) for each in JOBS]
)


def asked(server: str = "a3", nodes: int = 2, npus: int | None = None, **more: object) -> Job:
    target = Target(PINS["v0.9.1"], Arch.ARM, SERVERS[server].npu, in_image=True)
    made = container(target, SERVERS[server], npus)
    return job(made, nodes, COMMAND, **{"name": "verl", "queue": "default", **more})


def pods(resource: dict) -> list[dict]:
    """Return the templates of the head and of the workers."""
    cluster = resource["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


@pytest.fixture(scope="session")
def kuberay() -> Path:
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "")) / KUBERAY
    if "VERL_NPU_UPSTREAMS" not in os.environ or not folder.is_dir():
        pytest.skip(f"needs {KUBERAY}/, a checkout of github.com/ray-project/kuberay, in VERL_NPU_UPSTREAMS")
    return folder / "ray-operator"


@pytest.fixture(scope="session")
def schema(kuberay: Path) -> Schema:
    return Schema(kuberay / "config/crd/bases/ray.io_rayjobs.yaml", "v1")


# KubeRay.


@every
def test_kuberays_schema_takes_it(schema: Schema, server: str, nodes: int) -> None:
    claims = (Claim("data", "/data"), Claim("data", "/models"))
    made = manifest(asked(server, nodes, claims=claims, interface="bond0"))
    assert schema.refusals(yaml.safe_load(yaml.safe_dump(made))) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda pod: pod["spec"].update(hostNetworks=True), "hostNetworks"),
        (lambda pod: pod["spec"].update(hostNetwork="yes"), "'yes' is not of type 'boolean'"),
        (lambda pod: pod["spec"]["containers"][0]["resources"]["limits"].update(cpu="many"), "'many'"),
        (lambda pod: pod["spec"]["volumes"].append(dict(pod["spec"]["volumes"][0])), "there twice"),
        (lambda pod: pod["spec"]["containers"][0].pop("name"), "'name' is a required property"),
    ],
)
def test_the_schema_refuses_a_manifest_that_is_wrong(
    schema: Schema, spoil: Callable[[dict], object], said: str
) -> None:
    made = copy.deepcopy(manifest(asked()))
    spoil(pods(made)[0])
    assert any(said in each for each in schema.refusals(made))


def test_the_queue_is_named_as_in_kuberays_own_sample_for_volcano(kuberay: Path) -> None:
    sample = (kuberay / "config/samples/ray-job.volcano-scheduler-queue.yaml").read_text()
    (theirs,) = [each for each in yaml.safe_load_all(sample) if each["kind"] == "RayJob"]
    ours = manifest(asked(queue="training"))
    assert ours["metadata"]["labels"].keys() == theirs["metadata"]["labels"].keys()
    assert ours["apiVersion"] == theirs["apiVersion"]


# Machines and NPUs.


@every
def test_head_and_workers_are_as_many_pods_as_nodes_and_each_asks_for_the_npus(server: str, nodes: int) -> None:
    made = manifest(asked(server, nodes))
    groups = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert 1 + sum(group["replicas"] for group in groups) == nodes
    assert all(group["minReplicas"] == group["replicas"] == group["maxReplicas"] for group in groups)
    for pod in pods(made):
        (one,) = pod["spec"]["containers"]
        assert one["resources"]["limits"] == one["resources"]["requests"] == {RESOURCE: SERVERS[server].npus}


@every
def test_ray_is_told_of_the_npus_in_a_way_that_bash_and_ray_read(server: str, nodes: int) -> None:
    cluster = manifest(asked(server, nodes))["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        line = f"printf %s --resources={group['rayStartParams']['resources']}"
        said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
        assert json.loads(said.removeprefix("--resources=")) == {"NPU": SERVERS[server].npus}


@pytest.mark.parametrize(
    ("server", "label", "policy"),
    [
        ("a2", "module-910b-8", "chip8-node8"),
        ("a2-box16", "module-910b-16", "chip8-node16"),
        ("a3", "module-a3-16", "chip2-node16"),
        ("a3-superpod", "module-a3-16-super-pod", "chip2-node16-sp"),
    ],
)
def test_ascends_scheduler_is_told_the_model_of_the_machines(server: str, label: str, policy: str) -> None:
    made = manifest(asked(server, 2))
    annotations = made["metadata"]["annotations"]
    assert annotations["huawei.com/schedule_policy"] == policy
    assert ("sp-block" in annotations) == (server == "a3-superpod")
    assert all(pod["spec"]["nodeSelector"] == {"accelerator-type": label} for pod in pods(made))


def test_no_two_pods_of_a_job_are_on_one_machine() -> None:
    for pod in pods(manifest(asked())):
        (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


# The contents of a container.


def test_a_container_has_the_driver_and_shared_memory() -> None:
    for pod in pods(manifest(asked())):
        (one,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = {each["mountPath"]: volumes[each["name"]] for each in one["volumeMounts"]}
        assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        for file in FILES:
            kind = "Directory" if file.folder else "File"
            assert mounted[file.path]["hostPath"] == {"path": file.path, "type": kind}


def variables(pod: dict) -> dict[str, str]:
    """Return the variables of a container, with the field of the pod where the value is the pod's own."""
    (one,) = pod["spec"]["containers"]
    return {
        each["name"]: each["value"] if "value" in each else each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in one["env"]
    }


def test_a_container_has_the_variables_of_a_job_over_several_machines() -> None:
    for pod in pods(manifest(asked())):
        given = variables(pod)
        assert given["ASCEND_VISIBLE_DEVICES"] == f"metadata.annotations['{RESOURCE}']"
        assert given["HCCL_IF_IP"] == "status.hostIP"
        assert given["VLLM_ASCEND_ENABLE_NZ"] == "0"
        assert {"HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "TASK_QUEUE_ENABLE"} <= given.keys()


def test_an_interface_takes_the_place_of_the_address_which_hccl_would_prefer() -> None:
    for pod in pods(manifest(asked(interface="bond0"))):
        given = variables(pod)
        assert (given["HCCL_SOCKET_IFNAME"], given["GLOO_SOCKET_IFNAME"]) == ("=bond0", "bond0")
        assert "HCCL_IF_IP" not in given


def test_what_kuberay_puts_before_ray_start_is_a_line_for_bash() -> None:
    for pod in pods(manifest(asked())):
        (line,) = pod["spec"]["containers"][0]["command"]
        ended = subprocess.run(["bash", "-n", "-c", f"{line} && ulimit -n 65536; ray start"], check=False)
        assert ended.returncode == 0
        assert "set_env.sh" in line


def test_the_command_survives_the_shell() -> None:
    assert tuple(shlex.split(manifest(asked())["spec"]["entrypoint"])) == COMMAND


def test_a_claim_at_two_paths_is_one_volume() -> None:
    claims = (Claim("data", "/data"), Claim("data", "/models"))
    pod = pods(manifest(asked(claims=claims)))[0]["spec"]
    assert [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume] == [
        {"name": "claim-data", "persistentVolumeClaim": {"claimName": "data"}}
    ]
    paths = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"] if each["name"] == "claim-data"]
    assert paths == ["/data", "/models"]


# Refusals.


@pytest.mark.parametrize(
    ("server", "nodes", "npus", "expected"),
    [
        ("a2", 1, 9, "1 to 8, because one Atlas 800T A2 has 8"),
        ("a2-box16", 1, 9, "8, 10, 12, 14, 16, because"),
        ("a3", 1, 3, "1, 2, 4, 6, 8, 10, 12, 14, 16, because"),
        ("a3", 2, 1, "in a job on 2 nodes"),
        ("a3-superpod", 2, 8, "expected 16, because"),
    ],
)
def test_a_number_of_npus_that_no_machine_gives_is_an_error(server: str, nodes: int, npus: int, expected: str) -> None:
    with pytest.raises(CommandError, match=f"^--npus {npus}: ") as caught:
        asked(server, nodes, npus)
    assert expected in str(caught.value)


@pytest.mark.parametrize(("server", "nodes", "npus"), [("a2", 2, 3), ("a2-box16", 2, 10), ("a3", 1, 1), ("a3", 2, 4)])
def test_a_number_that_the_scheduler_gives_is_taken(server: str, nodes: int, npus: int) -> None:
    assert asked(server, nodes, npus).container.npus == npus


@pytest.mark.parametrize("name", ["", "Verl", "1verl", "verl_1", "verl-", "v" * 48, "verl\n"])
def test_a_name_that_kuberay_refuses_is_an_error(name: str) -> None:
    with pytest.raises(CommandError, match="at most 47 lowercase letters"):
        asked(name=name)


@pytest.mark.parametrize("queue", ["", "a queue", "-a", "q" * 64])
def test_a_queue_that_cannot_be_a_label_is_an_error(queue: str) -> None:
    with pytest.raises(CommandError, match="a Volcano queue"):
        asked(queue=queue)


@pytest.mark.parametrize("text", ["data", "data:", "data:relative", ":/data", "Data:/data"])
def test_a_claim_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(CommandError, match="NAME:/PATH"):
        Claim.parse(text)


@pytest.mark.parametrize("path", ["/dev/shm", "/usr/local/dcmi", "/data"])
def test_two_volumes_at_one_path_are_an_error(path: str) -> None:
    with pytest.raises(CommandError, match="that no other volume uses"):
        asked(claims=(Claim("first", "/data"), Claim("second", path)))
