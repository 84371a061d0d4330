"""Print as JSON what each kind of process of a Ray job detects: the program of test_verdicts.py.

The program is a Hydra entry point over upstream's own configuration, like the entry points that upstream forgot, and
makes its workers through upstream's own resource pool and worker group.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import hydra
import ray
import verl
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

# Upstream waits for its workers without a limit. Where a test expects that, it need not wait so long.
SECONDS = float(os.environ.get("PLACEMENT_SECONDS", "200"))


def look() -> dict[str, Any]:
    """Return what this process detects."""
    import verl.single_controller.base.worker as worker
    import verl.utils.distributed as distributed
    from verl.utils import device

    def answer(name: str) -> str:
        try:
            return str(getattr(device, name)())
        except RuntimeError as error:
            return f"raises: {error}"

    # Modules copied these constants when they were imported.
    copies = [
        module.is_npu_available for module in (device, distributed, worker) if hasattr(module, "is_npu_available")
    ]
    return {
        "device": answer("get_device_name"),
        "backend": answer("get_nccl_backend"),
        "resource": answer("get_resource_name") if hasattr(device, "get_resource_name") else None,
        "keyword": answer("get_visible_devices_keyword"),
        "npu": sorted(set(copies)),
        "cuda": device.is_cuda_available,
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }


class Looking(Worker):
    """A worker as upstream makes them."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self) -> dict[str, Any]:
        import torch

        x = torch.ones(1, device=f"{look()['device']}:{torch.npu.current_device()}")
        return {**look(), "computes on": str(x.device), "local rank": os.environ["LOCAL_RANK"]}


class Runner:
    """The actor that owns a job; it asks for CPUs only."""

    def look(self) -> dict[str, Any]:
        return look()

    def workers(self, device: str, count: int) -> list[dict[str, Any]]:
        """Make a group of workers, and return what each of them detects."""
        pool = RayResourcePool(process_on_nodes=[count], use_gpu=True, max_colocate_count=1)
        group = RayWorkerGroup(
            resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(Looking)), device_name=device
        )
        return group.look()

    def asked(self) -> list[list[str]]:
        """Return the resources that the placement groups made so far ask for."""
        from ray.util.placement_group import placement_group_table

        groups = placement_group_table().values()
        return [sorted({name for bundle in group["bundles"].values() for name in bundle}) for group in groups]


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    table = {"driver": look()}
    # Ray finds the NPUs, as in a real job. The CPUs are given: a laptop has too few, and a running cluster has its
    # own.
    ray.init(
        **({} if "RAY_ADDRESS" in os.environ else {"num_cpus": 8, "include_dashboard": False}), log_to_driver=False
    )
    runner = ray.remote(Runner).options(num_cpus=1, max_concurrency=2).remote()
    # Agent loops and servers are actors without a resource as well.
    idle = {name: ray.remote(Runner).remote() for name in ("AgentLoopWorker", "vLLMHttpServer")}
    table["TaskRunner"] = ray.get(runner.look.remote())
    table |= {name: ray.get(actor.look.remote()) for name, actor in idle.items()}
    workers = runner.workers.remote(config.trainer.device, 2)
    try:
        rows = ray.get(workers, timeout=SECONDS)
        table |= {f"worker {rank}": row for rank, row in enumerate(rows)}
    except ray.exceptions.GetTimeoutError:
        table["worker 0"] = {"waits": True}
    except ray.exceptions.RayTaskError as error:
        table["worker 0"] = {"raises": str(error)[-800:]}
    job = {"verl": verl.__file__, "setting": config.trainer.device, "asked": ray.get(runner.asked.remote())}
    print(json.dumps({"job": job, "table": table}))
    sys.stdout.flush()
    # When this job ends early, other jobs of the cluster must not get its NPUs.
    if until := os.environ.get("HOLD_UNTIL"):
        ends = time.monotonic() + SECONDS
        while not Path(until).exists() and time.monotonic() < ends:
            time.sleep(0.1)
    # ray.shutdown() would wait for the workers that are never placed.
    os._exit(0)


if __name__ == "__main__":
    main()
