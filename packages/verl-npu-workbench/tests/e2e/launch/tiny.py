"""A job that is no training: a task on each host, with all its NPUs, that meets the others in rounds.

tiny.py HOSTS FOLDER --rounds N --seconds S --status CODE --hang --slow-save S
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

import ray

parser = argparse.ArgumentParser()
parser.add_argument("hosts", type=int)
parser.add_argument("folder", type=Path)
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seconds", type=float, default=0.2)
parser.add_argument("--status", type=int, default=0)
parser.add_argument("--hang", action="store_true", help="do not end when a host is lost, as a collective does")
parser.add_argument("--save", type=float, default=0.0, help="seconds that a checkpoint takes")
options = parser.parse_args()


@ray.remote(num_cpus=0, max_restarts=0)
class Meeting:
    """Where the tasks wait for each other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.came: dict[int, set[int]] = {}

    def arrive(self, number: int, rank: int) -> bool:
        self.came.setdefault(number, set()).add(rank)
        return len(self.came[number]) == self.count


@ray.remote(num_cpus=0, max_retries=0)
def work(rank: int, meeting, first: int, rounds: int, seconds: float, folder: str, save: float) -> str:
    print(f"rank {rank} works on {socket.gethostname()}", flush=True)
    for number in range(first, rounds):
        while not ray.get(meeting.arrive.remote(number, rank)):
            time.sleep(0.05)
        print(f"rank {rank} round {number}", flush=True)
        (Path(folder) / f"round-{number}").touch()
        time.sleep(seconds)
        if rank == 0:
            # Written as checkpoints should be: whole, or not at all.
            (Path(folder) / "saving").touch()
            time.sleep(save)
            (Path(folder) / "half").write_text(str(number + 1))
            os.replace(Path(folder) / "half", Path(folder) / "checkpoint")
    return socket.gethostname()


checkpoint = options.folder / "checkpoint"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
print(f"driver: from round {first}, visible {os.environ.get('ASCEND_RT_VISIBLE_DEVICES', 'all')}", flush=True)
print(f"driver: in {os.getcwd()}, {os.environ.get('HCCL_EXEC_TIMEOUT')} s", flush=True)
ray.init()
group = ray.util.placement_group([{"NPU": 2}] * options.hosts, strategy="STRICT_SPREAD")
ray.get(group.ready())
meeting = Meeting.remote(options.hosts)
tasks = [
    work.options(
        resources={"NPU": 2},
        scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index),
    ).remote(index, meeting, first, options.rounds, options.seconds, str(options.folder), options.save)
    for index in range(options.hosts)
]
try:
    where = ray.get(tasks)
except ray.exceptions.RayError as error:
    print(f"driver: {type(error).__name__}", flush=True)
    if options.hang:
        time.sleep(10000)
    raise
print(f"driver: done on {', '.join(sorted(where))}", flush=True)
sys.exit(options.status)
