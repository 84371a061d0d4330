"""Starts the ranks of a weight-sync group as processes on virtual NPUs, and reads their results."""

from __future__ import annotations

import json
import subprocess
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtual_ascend.testing.fork_server import ForkServer

# The start of every rank's program. `meet()` joins the group, `sync()` syncs `tensors`, and `tell()` reports facts. A
# rank leaves without the end of the interpreter, which takes seconds after a fork.
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
log = os.open(f"{FOLDER}/rank{RANK}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(log, 1)
os.dup2(log, 2)

def leave(status):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

def fail(*error):
    sys.__excepthook__(*error)
    leave(1)

sys.excepthook = fail
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


class Ranks(ForkServer):
    """A fork server that has loaded two virtual NPUs and the modules of weight sync, and forks the ranks."""

    def __init__(self, *modules: str, **options: str) -> None:
        super().__init__("torch_npu", "verl_npu.features.weight_sync.transport.sync", *modules, **options)

    def run(self, program: str, folder: Path, size: int = 2, timeout: float = 120, **changes: str) -> list[Ended]:
        """Run `program` after START on each rank, and return the results by rank."""
        code = START + textwrap.dedent(program) + "\nleave(0)"
        common = self.environment | changes | {"WORLD_SIZE": str(size), "FOLDER": str(folder)}
        processes = [self.start(code, (), common | {"RANK": str(rank)}) for rank in range(size)]
        deadline = time.monotonic() + timeout
        return [_end(process, folder / f"rank{rank}", deadline) for rank, process in enumerate(processes)]


def _end(process: subprocess.Popen[str], log: Path, deadline: float) -> Ended:
    """Wait for a rank until the deadline, and kill it then."""
    try:
        process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
    _, early = process.communicate()
    output = early + log.read_text(errors="replace") if log.exists() else early
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("FACTS "):
            facts |= json.loads(line.removeprefix("FACTS "))
    return Ended(process.returncode, facts, output[-3000:])
