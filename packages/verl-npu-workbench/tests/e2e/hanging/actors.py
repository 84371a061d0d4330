"""Run Ray actors that stand still: actors.py HOW"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

import ray

HOW = sys.argv[1]


@ray.remote(num_cpus=0)
class Engine:
    """An actor that waits for itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def ready(self) -> int:
        return os.getpid()

    def generate(self, caller) -> int:
        return ray.get(caller.more.remote())

    def sleep_mode(self) -> None:
        with self.lock:
            self.wake_up()

    def wake_up(self) -> None:
        with self.lock:
            pass


@ray.remote(num_cpus=0)
class Trainer:
    """An actor that asks an engine, which asks it in turn."""

    def more(self) -> int:
        return 1

    def fit(self, engine) -> int:
        return ray.get(engine.generate.remote(ray.get_runtime_context().current_actor))


@ray.remote(num_cpus=0)
class Rank:
    """One of two ranks."""

    def ready(self) -> int:
        import torch.distributed as dist
        import torch_npu  # noqa: F401

        dist.init_process_group("hccl", timeout=timedelta(minutes=20))
        return os.getpid()

    def update(self, steps: int) -> int:
        import torch
        import torch.distributed as dist

        for _ in range(steps):
            dist.all_reduce(torch.ones(8, device="npu"))
        return os.getpid()


def ranks() -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
    workers = [
        Rank.options(resources={"NPU": 1}, runtime_env={"env_vars": {**variables, "RANK": str(rank)}}).remote()
        for rank in range(2)
    ]
    print("ready", *ray.get([worker.ready.remote() for worker in workers]), flush=True)
    ray.get([worker.update.remote(3 - rank) for rank, worker in enumerate(workers)])


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False)
    if HOW == "ranks":
        ranks()
        return
    engine = Engine.remote()
    print("ready", ray.get(engine.ready.remote()), flush=True)
    if HOW == "lock":
        ray.get(engine.sleep_mode.remote())
    elif HOW == "circle":
        ray.get(Trainer.remote().fit.remote(engine))
    elif HOW == "nothing":
        time.sleep(1000)


main()
