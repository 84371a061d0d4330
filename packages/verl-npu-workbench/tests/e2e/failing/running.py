"""Runs a failing job, and asks `verl-npu doctor --log` about its log."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import process
from verl_npu_workbench.diagnosis.judgement import Diagnosis, diagnose
from verl_npu_workbench.processes import descendants
from virtual_ascend.testing import free_port

from .jobs import Job, Program, Where

HERE = Path(__file__).parent
PROJECT = HERE.parents[4]
_NPUS = 2
_SMALL_GRPO = (
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)
_STARTED = 8.0
"""The seconds after which a rank that is to be killed is at work."""


@dataclass(slots=True)
class Watched:
    """The processes of a job by role, as the kernel reports them, whatever the log says."""

    kill: bool
    ranks: dict[str, set[str]] = field(default_factory=dict)
    """The ids of the processes by rank."""
    task_runners: set[str] = field(default_factory=set)
    _first: dict[int, float] = field(default_factory=dict)
    _killed: bool = False

    def look(self) -> None:
        """Record the current processes."""
        for pid in descendants(os.getpid()):
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if b"ray::" in title and b"TaskRunner" in title:
                self.task_runners.add(str(pid))
            found = re.search(rb"(?:^|\0)RANK=(\d+)\0", environ)
            if found:
                rank = found[1].decode()
                self.ranks.setdefault(rank, set()).add(str(pid))
                since = time.monotonic() - self._first.setdefault(pid, time.monotonic())
                if self.kill and rank == "1" and since > _STARTED and not self._killed:
                    self._killed = True
                    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job, and its diagnosis."""

    job: Job
    status: int
    seconds: float
    log: Path
    said: Diagnosis
    watched: Watched

    @property
    def cause(self) -> bool:
        """Return whether the cause is named. The user's own error must be shown as unknown."""
        root = self.said.root
        if root is None:
            return False
        if self.job.causes:
            return root.name in self.job.causes
        return root.rule is None and self.job.error in root.event.text

    @property
    def process(self) -> bool:
        """Return whether the process in which the fault began is named."""
        return self.said.root is not None and self._is(self.job.where)

    def _is(self, where: Where) -> bool:
        if self.said.root is None:
            return False
        found = self.said.root.event.process
        if where is Where.DRIVER:
            return found.name == "the driver"
        if where is Where.NODE:
            return found.name in ("node", "raylet")
        if where is Where.TASK_RUNNER:
            return found.pid in self.watched.task_runners
        if where is Where.ANY:
            return self._is(Where.ZERO) or self._is(Where.ONE)
        rank = "0" if where is Where.ZERO else "1"
        if found.rank:
            return found.rank == rank
        return found.pid in self.watched.ranks.get(rank, set())


def run(job: Job, folder: Path) -> Outcome:
    """Run a job to its end, and diagnose its output."""
    folder.mkdir(parents=True, exist_ok=True)
    watched = Watched(job.kill)
    console = folder / "console.log"
    with _ports(job) as environment, tempfile.TemporaryDirectory(prefix="vn-", ignore_cleanup_errors=True) as ray:
        environment = {**os.environ, "VIRTUAL_ASCEND": str(_NPUS), "RAY_TMPDIR": ray, **environment}
        ended = process.run(
            _with_small_folder(job, folder, _command(job, folder, environment)),
            environment,
            folder,
            console,
            job.seconds,
            watched.look,
        )
    log = next(folder.glob("out/*/train.log"), console)
    return Outcome(job, ended.status, ended.seconds, log, diagnose([log]), watched)


def _command(job: Job, folder: Path, environment: Mapping[str, str]) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={_NPUS}"]
    if job.program is Program.RAY:
        return [sys.executable, str(HERE / "cluster.py"), *job.settings]
    if job.program is Program.TORCH:
        return [*torchrun, *_meeting(environment), str(HERE / "training.py"), *job.settings]
    name = "grpo" if job.program is Program.GRPO else "sft"
    small = _SMALL_GRPO if job.program is Program.GRPO else ()
    asked = ["--pin", "v0.6.1", "--job", name, "--steps", "2", "--output", str(folder / "out")]
    settings = [each.format(reward=HERE / "reward.py") for each in job.settings]
    small_place = [f"trainer.default_local_dir={folder / job.small}"] if job.small else []
    script = [sys.executable, str(PROJECT / "scripts" / "smoke.py"), "--no-venv"]
    return [*script, *asked, "--", *small, *small_place, *settings]


def _meeting(environment: Mapping[str, str]) -> list[str]:
    if "HEAD" in environment:
        wait = environment["SECONDS_TO_MEET"]
        return [
            "--nnodes=2", "--node_rank=1", f"--rdzv_endpoint={environment['HEAD']}:{environment['MASTER_PORT']}",
            "--rdzv_backend=static", f"--rdzv_conf=timeout={wait},join_timeout={wait}",
        ]  # fmt: skip
    return ["--nnodes=1", "--master_addr=127.0.0.1", f"--master_port={environment['MASTER_PORT']}"]


@contextmanager
def _ports(job: Job) -> Iterator[dict[str, str]]:
    """Yield the job's variables with a port to meet at; where the port is to be taken, somebody listens at it."""
    if job.environment.get("MASTER_PORT") != "taken":
        yield {**job.environment, "MASTER_PORT": str(free_port())}
        return
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        yield {**job.environment, "MASTER_PORT": str(other.getsockname()[1])}


def _with_small_folder(job: Job, folder: Path, command: list[str]) -> list[str]:
    """Return the command in a mount namespace of its own, in which a folder has room for a MiB."""
    if not job.small:
        return command
    place = folder / job.small
    place.mkdir(exist_ok=True)
    words = f'mount -t tmpfs -o size=1m none "{place}" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", words, "sh", *command]
