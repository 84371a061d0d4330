"""A rank, a server, Ray's raylet or its GCS killed in each phase of two real jobs on virtual NPUs.

Each job resumes from what the faults before it have left, and is struck once it has trained a step on top of that. So
every job but the first shows that a fault leaves nothing that a resume would stumble over. What each said stands in
docs/records-runs.md, which `python -m tests.e2e.test_killed FOLDER [FAULT …]` prints.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(PROJECT / "scripts"))

from harness import process
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, diagnose
from verl_npu_workbench.processes import descendants

PATIENCE = 100.0
"""Seconds for a job to end after it was struck."""
_ALL = 900.0
_EVERY = 0.02
_WEIGHT_SYNC_TIMEOUT = 20
_CHECKOUTS = os.environ.get("VERL_NPU_UPSTREAMS")
_CHANGED = (
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
)
_MICRO = ("actor.ppo", "ref.log_prob", "rollout.log_prob")
_SETTINGS = (*_CHANGED, *(f"actor_rollout_ref.{each}_micro_batch_size_per_gpu=4" for each in _MICRO))

VICTIMS = {
    "server": r"ray::vLLMHttpServer",
    "engine": r"VLLM::EngineCore",
    "raylet": r"/raylet/raylet\b",
    "gcs": r"gcs_server\b",
}
"""By name, what the command of the process has in it. A rank of trainer or rollout is told by the log."""
PHASES = {
    "sync": r"ray::\w+\.\w*sync_rollout_weights",
    "rollout": r"ray::\w+\.\w*generate_sequences",
    "train": r"ray::\w+\.\w*update_actor",
    "save": r"ray::\w+\.\w*save_checkpoint",
    "resume": r"ray::\w+\.\w*load_checkpoint",
}
"""By name, what Ray calls a process that is in it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to which process of a job, and when."""

    job: str
    phase: str
    victim: str
    number: signal.Signals = signal.SIGKILL

    def __str__(self) -> str:
        return f"{self.job}-{self.phase}-{self.victim}" + ("-stop" if self.number is signal.SIGSTOP else "")


def _faults() -> Iterator[Fault]:
    for phase in ("rollout", "train", "save", "resume"):
        yield from (Fault("grpo", phase, victim) for victim in ("rank", "raylet", "gcs"))
    yield Fault("grpo", "train", "rank", signal.SIGSTOP)
    for phase in PHASES:
        yield from (Fault("one_step_off", phase, victim) for victim in ("rank", "rollout", *VICTIMS))
    yield Fault("one_step_off", "sync", "rollout", signal.SIGSTOP)
    yield Fault("one_step_off", "rollout", "engine", signal.SIGSTOP)


FAULTS = tuple(_faults())


@dataclass(slots=True)
class Struck:
    """A job, the fault in it, and what came of it."""

    fault: Fault
    folder: Path
    checkpoints: Path
    resumed_from: int
    when: float = 0.0
    pid: int = 0
    seconds: float | None = None
    """From the fault to the end of verl's own process; None where it never ended."""
    hang: dict[str, object] = field(default_factory=dict)
    """What `doctor --hang` says of it then."""
    said: Diagnosis | None = None
    """What `doctor --log` says of it, before it is ended from outside if it never ended."""
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def log(self) -> Path:
        return next(self.folder.glob("out/*/train.log"), self.folder / "console.log")

    def run(self) -> None:
        """Run the job until it has ended, or has stood still for long enough."""
        self.folder.mkdir(parents=True)
        watch = threading.Thread(target=self._strike, daemon=True)
        with tempfile.TemporaryDirectory(prefix="vn-", ignore_cleanup_errors=True) as ray, suppress(TimeoutError):
            environment = os.environ | {
                "VIRTUAL_ASCEND": "2",
                "RAY_TMPDIR": ray,
                "VERL_NPU_WEIGHT_SYNC_TIMEOUT": str(_WEIGHT_SYNC_TIMEOUT),
            }
            watch.start()
            process.run(self._command(), environment, self.folder, self.folder / "console.log", _ALL, self._look)
        self.said = self.said or diagnose([self.log])
        self._over.set()
        watch.join()

    def _command(self) -> list[str]:
        asked = ["--job", self.fault.job, "--steps", "400", "--timeout", "800", "--output", str(self.folder / "out")]
        kept = [
            "data.dataloader_num_workers=0",
            "trainer.save_freq=1",
            "trainer.resume_mode=auto",
            f"trainer.default_local_dir={self.checkpoints}",
        ]
        if self.fault.job == "grpo":
            script = [sys.executable, str(PROJECT / "scripts" / "smoke.py"), "--no-venv", "--pin", "v0.6.1"]
            return [*script, *asked, "--", *_SETTINGS, *kept]
        checkout = ["--pin", "ccd7d934", "--verl", f"{_CHECKOUTS}/verl-ccd7d934"]
        return [str(PROJECT / "scripts" / "smoke.sh"), *checkout, *asked, "--", *kept]

    def _strike(self) -> None:
        ready = False
        while not self._over.wait(_EVERY):
            ready = ready or self._ready()
            titles = {pid: _title(pid) for pid in descendants(os.getpid())} if ready else {}
            there = [pid for pid, title in titles.items() if re.match(PHASES[self.fault.phase], title)]
            found = self._victims(titles, there) if there and self._written() else []
            if found:
                self.pid, self.when = max(found), time.monotonic()
                os.kill(self.pid, self.fault.number)
                return

    def _victims(self, titles: Mapping[int, str], there: Sequence[int]) -> Sequence[int]:
        if self.fault.victim in VICTIMS:
            return [pid for pid, title in titles.items() if re.search(VICTIMS[self.fault.victim], title)]
        role = "actor" if self.fault.victim == "rank" else "rollout"
        return [int(pid) for pid in re.findall(rf"\({role} \S+ pid (\d+)\)", _text(self.log))] or there

    def _ready(self) -> bool:
        """Whether the job is to be struck as soon as it is in the phase: it has trained on, or is to load."""
        if self.fault.phase == "resume":
            return self.resumed_from > 0
        return f"step:{self.resumed_from + 1} - " in _text(self.log)

    def _written(self) -> bool:
        """Whether something of a checkpoint is there, where it is being saved."""
        return self.fault.phase != "save" or any(True for each in self.unmarked() for _ in each.rglob("*.pt"))

    def _look(self) -> None:
        if not self.when or self.seconds is not None:
            return
        if not any(
            "verl.trainer.main_ppo" in _title(pid) or "main_ppo" in _title(pid) for pid in descendants(os.getpid())
        ):
            self.seconds = time.monotonic() - self.when
        elif time.monotonic() - self.when > PATIENCE:
            command = [sys.executable, "-m", "verl_npu", "doctor", "--hang", str(driver), "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            with suppress(ValueError):
                self.hang = json.loads(done.stdout or done.stderr)
            self.said = diagnose([self.log])
            raise TimeoutError

    def unmarked(self) -> list[Path]:
        """Folders of checkpoints that are later than the marker says."""
        return [each for each in self.checkpoints.glob("global_step_*") if _step(each) > marked(self.checkpoints)]

    def broken_manifests(self) -> list[str]:
        """Manifests that cannot be read."""
        return [each.name for each in self.folder.glob("out/*/manifests/*") if not _is_json(each)]


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _is_json(path: Path) -> bool:
    with suppress(ValueError):
        return bool(json.loads(path.read_text()))
    return False


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])


def marked(checkpoints: Path) -> int:
    """The step of the last whole checkpoint; 0 if there is none."""
    return int(_text(checkpoints / "latest_checkpointed_iteration.txt") or 0)


def strike(fault: Fault, folder: Path) -> Struck:
    """Run a job with a fault; its checkpoints are those of all faults of that job in the folder."""
    checkpoints = folder / f"checkpoints-{fault.job}"
    struck = Struck(fault, folder / str(fault), checkpoints, marked(checkpoints))
    struck.run()
    return struck


def row(struck: Struck) -> str:
    """One line of the record."""
    said = struck.said
    if said is None:
        raise ValueError(f"{struck.fault} was not run")
    root = said.root
    named = (root.name or root.event.error[:100], str(root.event.process)) if root else ("nothing", "")
    ended = "never" if struck.seconds is None else f"{struck.seconds:.0f} s"
    resumed = f"{struck.resumed_from} -> {said.steps}"
    left = ", ".join(each.name for each in struck.unmarked()) or "-"
    hang = f"{struck.hang.get('verdict')}: {struck.hang.get('why')}" if struck.hang else "-"
    status = re.search(r"status (-?\d+)", _text(struck.folder / "console.log"))
    cells = (
        str(struck.fault),
        f"pid {struck.pid}",
        ended,
        f"status {status and status[1]}",
        said.verdict.value,
        *named,
    )
    return " | ".join((*cells, resumed, left, f"{len(struck.broken_manifests())} broken", hang))


if __name__ == "__main__":
    for fault in FAULTS:
        if not sys.argv[2:] or str(fault) in sys.argv[2:]:
            print(row(strike(fault, Path(sys.argv[1]).resolve())), flush=True)
