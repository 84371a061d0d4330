"""Run workers on virtual NPUs under Ray without verl, of which one meets a fault: cluster.py FAULT"""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import ray

FAULT = sys.argv[1]


@ray.remote(num_cpus=0)
class Worker:
    """The worker of one NPU."""

    def work(self, step: int) -> float:
        import torch
        import torch_npu  # noqa: F401

        if step == 3 and os.environ["RANK"] == "1":
            if FAULT == "exits":
                os._exit(1)
            if FAULT == "raises":
                raise ValueError("the grader has no answer for row 17")
            if FAULT == "loses_its_node":
                _parent("raylet").send_signal(signal.SIGKILL)
                time.sleep(60)
        return torch.ones(8, device="npu").sum().item()


def _parent(name: str) -> psutil.Process:
    return next(each for each in psutil.Process().parents() if name in each.name())


def main() -> None:
    # The environment may name a cluster; otherwise the job starts its own.
    ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else 8)
    npus = 4 if FAULT == "asks_for_too_many" else 1
    workers = [
        Worker.options(resources={"NPU": npus}, runtime_env={"env_vars": {"RANK": str(rank)}}).remote()
        for rank in range(2)
    ]
    for step in range(1, 6):
        print(f"step:{step} - train/loss:{sum(ray.get([worker.work.remote(step) for worker in workers]))}", flush=True)


main()
