"""A job without training: a task on each host, with all its NPUs, prints the host's variables.

tiny.py HOSTS FOLDER [--status CODE] [--forever]: each task leaves a file in the folder.
"""

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
parser.add_argument("--status", type=int, default=0)
parser.add_argument("--forever", action="store_true")
options = parser.parse_args()
NAMES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HCCL_IF_IP", "HCCL_EXEC_TIMEOUT")


@ray.remote(num_cpus=0, max_retries=0)
def work() -> str:
    Path(options.folder, f"on-{socket.gethostname()}").touch()
    while options.forever:
        time.sleep(0.1)
    return f"{socket.gethostname()}: {', '.join(f'{name}={os.environ.get(name)}' for name in NAMES)}"


ray.init()
group = ray.util.placement_group([{"NPU": 2}] * options.hosts, strategy="STRICT_SPREAD")
place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
each = [
    work.options(resources={"NPU": 2}, scheduling_strategy=place(group, index)).remote()
    for index in range(options.hosts)
]
print(f"driver: visible {os.environ.get('ASCEND_RT_VISIBLE_DEVICES', 'all')}", *sorted(ray.get(each)), sep="\n")
sys.exit(options.status)
