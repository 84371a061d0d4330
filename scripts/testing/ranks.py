"""Starts the ranks of a weight-sync group as processes on virtual NPUs, and reads their results.

Run as a program, it is the fork server: it imports torch once, and forks the ranks of one test after another.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtual_ascend.testing import end_with_parent

# The start of every rank's program. `meet()` joins the group, `sync()` syncs `tensors`, and `tell()` reports facts.
START = """
import json, os, signal, sys, time
import torch, torch_npu
from verl_npu.features.weight_sync.transport.plan import find_tied
from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.transport.group import find, join
from verl_npu.features.weight_sync.transport.messages import Meeting, open_meeting
from verl_npu.features.weight_sync.transport.tensors import Metadata
from verl_npu.features.weight_sync.transport.messages import Secret
from verl_npu.features.weight_sync.settings import Check, Settings
from verl_npu.features.weight_sync.transport.sync import follow, preparing, receive, send

RANK, SIZE, FOLDER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["FOLDER"]
TIMEOUT = float(os.environ.get("LIMIT", "60"))
DEVICE = torch.device("npu", RANK % 2)
torch.npu.set_device(DEVICE)

def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)

class Engine:
    # The tensors of a plain model, and whether they may be used.
    def __init__(self):
        self.held, self.expected, self.usable, self.loads = {}, {}, True, 0
    def load(self, weights):
        self.usable, self.loads = False, self.loads + 1
        self.held.update((name, tensor.clone()) for name, tensor in weights)
    def open(self):
        self.usable = True
    def expect(self, weights):
        self.expected.update((name, tensor.clone()) for name, tensor in weights)
    def prove(self):
        assert all(torch.equal(bits(self.held[name]), bits(tensor)) for name, tensor in self.expected.items())
        return "the engine holds them bit for bit"

def meeting(host="127.0.0.1", port=0):
    path = FOLDER + "/meeting"
    if RANK == 0:
        made = open_meeting(host, port, TIMEOUT)
        with open(path + ".new", "w") as file:
            json.dump([made.host, made.port, made.secret.value.hex()], file)
        os.replace(path + ".new", path)
        return made
    while not os.path.exists(path):
        time.sleep(0.02)
    host, port, secret = json.load(open(path))
    return Meeting(host, port, Secret(bytes.fromhex(secret)))

def meet(name="weights", **options):
    return join(name, meeting(), RANK, SIZE, timeout=TIMEOUT, device=DEVICE, **options)

def metadata(tensors):
    return Metadata.of((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())

def sync(group, tensors, engine=None, settings=Settings(), expected="same"):
    if RANK == 0:
        return send(group, metadata(tensors), tensors.items(), settings, find_tied(tensors.items()))
    return receive(group, metadata(tensors) if expected == "same" else expected, engine)

def tell(**facts):
    print("FACTS " + json.dumps(facts), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status of a rank, the facts that it reported, and its output."""

    status: int
    facts: dict[str, Any]
    output: str


Run = Callable[..., "list[Ended]"]


class ForkServer:
    """A process that has loaded torch, two virtual NPUs, and some modules, and forks the ranks."""

    def __init__(self, *modules: str, python: str = sys.executable, **changes: str) -> None:
        environment = {**os.environ, "VIRTUAL_ASCEND": "2", "OMP_NUM_THREADS": "1", **changes}
        environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)
        self._process = subprocess.Popen(
            [python, __file__, *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,
        )

    def run(self, program: str, folder: Path, size: int = 2, timeout: float = 120, **changes: str) -> list[Ended]:
        """Run `program` after START on each rank, and return the results by rank."""
        job = {"program": textwrap.dedent(program), "folder": str(folder), "size": size, "timeout": timeout}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job | {"changes": changes}), file=self._process.stdin, flush=True)
        statuses = json.loads(self._process.stdout.readline())
        ended = []
        for rank, status in enumerate(statuses):
            output = (folder / f"rank{rank}").read_text(errors="replace")
            facts: dict[str, Any] = {}
            for line in output.splitlines():
                if line.startswith("FACTS "):
                    facts |= json.loads(line.removeprefix("FACTS "))
            ended.append(Ended(status, facts, output[-3000:]))
        return ended

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def _serve() -> None:
    import torch  # noqa: F401
    import torch_npu  # noqa: F401

    import verl_npu.features.weight_sync.transport.sync  # noqa: F401

    # Some modules print on import, and this process answers on its standard output.
    answers, sys.stdout = sys.stdout, sys.stderr
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        children = [_fork(job, rank) for rank in range(job["size"])]
        print(json.dumps(_wait(children, job["timeout"])), file=answers, flush=True)


def _fork(job: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if child:
        return child
    end_with_parent()
    log = os.open(f"{job['folder']}/rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.environ.update(job["changes"], RANK=str(rank), WORLD_SIZE=str(job["size"]), FOLDER=job["folder"])
    status = 1
    try:
        exec(compile(START + job["program"], f"rank{rank}", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(children: list[int], timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for child in children:
            if child not in statuses:
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    statuses[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [statuses[child] for child in children]


if __name__ == "__main__":
    _serve()
