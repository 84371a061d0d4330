"""What each kind of process of a real Ray cluster with virtual NPUs believes, with verl-npu and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

# One program for all: the driver, an actor that asks for CPUs only (as TaskRunner, agent loops and servers do), and
# one that asks for an NPU (as workers do).
PROGRAM = """
import json, ray

def look():
    import os
    from verl.utils import device
    import verl.utils.distributed as copy
    import verl.single_controller.base.worker as other

    def of(name):
        try:
            return getattr(device, name)()
        except RuntimeError as error:
            return f"raises {error}"

    return {
        "device": of("get_device_name"),
        "backend": of("get_nccl_backend"),
        "keyword": of("get_visible_devices_keyword"),
        "npu": [device.is_npu_available, copy.is_npu_available, other.is_npu_available],
        "cuda": device.is_cuda_available,
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }

driver = look()
ray.init(num_cpus=4, resources={"NPU": 2}, include_dashboard=False, log_to_driver=False)
Actor = ray.remote(type("Actor", (), {"look": lambda self: look()}))
blind = [Actor.options(name=name, num_cpus=1).remote() for name in ("TaskRunner", "AgentLoopWorker", "vLLMHttpServer")]
workers = [Actor.options(num_cpus=0, resources={"NPU": 1}).remote() for _ in range(2)]
names = ("TaskRunner", "AgentLoopWorker", "vLLMHttpServer", "worker", "worker 2")
table = dict(zip(names, ray.get([actor.look.remote() for actor in [*blind, *workers]])))
print(json.dumps({"driver": driver, **table}))
ray.shutdown()
"""


def table(**environment: str) -> dict[str, dict[str, object]]:
    pytest.importorskip("verl")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "ASCEND_", "RAY_"))}
    # The device that the tests before this one have compiled is used again.
    inherited |= {k: v for k, v in os.environ.items() if k == "VERL_NPU_CACHE"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, "VERL_NPU_VIRTUAL": "2", "RAY_USAGE_STATS_ENABLED": "0", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    for process, row in found.items():
        print(f"{process:16} {row}")
    return found


BLIND = ("TaskRunner", "AgentLoopWorker", "vLLMHttpServer")


def test_with_verl_npu_every_process_comes_to_the_same_verdict() -> None:
    found = table()
    for process, row in found.items():
        assert (row["device"], row["backend"], row["npu"], row["cuda"]) == ("npu", "hccl", [True] * 3, False), process
        assert row["keyword"] == "ASCEND_RT_VISIBLE_DEVICES"
    assert sorted(found[name]["visible"] for name in ("worker", "worker 2")) == ["0", "1"]


def test_without_it_the_known_fault_is_there() -> None:
    found = table(VERL_NPU="off")
    # Ray hides the NPUs from them, so they decide for nccl: the reason for the patch.
    for process in BLIND:
        row = found[process]
        assert (row["visible"], row["device"], row["backend"], row["npu"]) == ("", "cpu", "nccl", [False] * 3)
    for process in ("driver", "worker", "worker 2"):
        assert (found[process]["device"], found[process]["backend"]) == ("npu", "hccl")
