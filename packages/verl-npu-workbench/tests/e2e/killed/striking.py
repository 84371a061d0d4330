"""A job on virtual NPUs of which one process is killed, or stopped, in one phase, and what is said of it.

A job resumes from what the faults before it have left, and is struck once it has trained a step on top of that: so
every job but the first shows that the fault before it left nothing that a resume stumbles over.
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

from harness import process
from verl_npu_workbench.diagnosis.judgement import Diagnosis, diagnose
from verl_npu_workbench.processes import descendants

from verl_npu.manifest import read_manifests

SCRIPTS = Path(__file__).parents[5] / "scripts"
CHECKOUT = Path(os.environ.get("VERL_NPU_UPSTREAMS", ""), "verl-ccd7d934")
_PATIENCE = 130.0
"""Seconds for a job to end after it was struck."""
_EVERY = 0.02
_SETTINGS = ("data.dataloader_num_workers=0", "trainer.save_freq=1", "trainer.resume_mode=auto")

TITLES = {
    "server": r"ray::vLLMHttpServer",
    "engine": r"VLLM::EngineCore",
    "raylet": r"/raylet/raylet\b",
    "gcs": r"gcs_server\b",
}
"""By victim, what its command has in it. A rank of the trainer or of the rollout is told by the log."""
PHASES = {
    "sync": r"ray::\w+\.\w*sync_rollout_weights",
    "rollout": r"ray::\w+\.\w*generate_sequences",
    "train": r"ray::\w+\.\w*update_actor",
    "save": r"ray::\w+\.\w*save_checkpoint",
    "resume": r"ray::\w+\.\w*load_checkpoint",
}
"""By name, how Ray titles a process that is in it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to which process of a job, and when."""

    job: str
    phase: str
    victim: str
    signal: signal.Signals = signal.SIGKILL
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = ["stop"] if self.signal is signal.SIGSTOP else []
        return "-".join(
            (self.job, self.phase, self.victim, *more, *(each.rpartition(".")[2] for each in self.settings))
        )


def _faults() -> Iterator[Fault]:
    for phase in ("rollout", "train", "save", "resume"):
        yield from (Fault("grpo", phase, victim) for victim in ("rank", "raylet", "gcs"))
    yield Fault("grpo", "train", "rank", signal.SIGSTOP)
    for phase in PHASES:
        yield from (Fault("one_step_off", phase, victim) for victim in ("rank", "rollout", *TITLES))
    yield Fault("one_step_off", "sync", "rollout", signal.SIGSTOP)
    # verl before v0.7.1 removes the old checkpoint before it writes the new one, so nothing can be resumed after this.
    yield Fault("grpo", "save", "rank", settings=("trainer.max_actor_ckpt_to_keep=1",))


FAULTS = tuple(_faults())


@dataclass(slots=True)
class Struck:
    """A job, the fault in it, and what came of it."""

    fault: Fault
    folder: Path
    checkpoints: Path
    resumed: int
    """The step from which it went on; 0 for none."""
    said: Diagnosis | None = None
    """What `doctor --log` says of it: while it hangs, if it did."""
    pid: int = 0
    seconds: float | None = None
    """From the fault to the end of verl's own process; None where it never ended."""
    hang: dict[str, object] = field(default_factory=dict)
    """What `doctor --hang` says of it then."""
    when: float = 0.0
    over: bool = False

    @property
    def log(self) -> Path:
        """What the job printed."""
        return next(self.folder.glob("out/*/train.log"), self.folder / "console.log")

    @property
    def unmarked(self) -> list[str]:
        """Folders of checkpoints that verl has not marked as whole."""
        last = marked(self.checkpoints)
        return [each.name for each in self.checkpoints.glob("global_step_*") if int(each.name[12:]) > last]

    @property
    def cut_short(self) -> int:
        """How many manifests cannot be read."""
        return sum(len(read_manifests(each)[1]) for each in self.folder.glob("out/*/manifests"))


def strike(fault: Fault, folder: Path) -> Struck:
    """Run a job with a fault until it has ended, or has stood still for long enough."""
    checkpoints = folder / "-".join((fault.job, *fault.settings))
    struck = Struck(fault, folder / str(fault), checkpoints, marked(checkpoints))
    struck.folder.mkdir(parents=True)
    watch = threading.Thread(target=_watch, args=(struck,), daemon=True)
    with tempfile.TemporaryDirectory(prefix="vn-", ignore_cleanup_errors=True) as ray, suppress(TimeoutError):
        ours = {"VIRTUAL_ASCEND": "2", "RAY_TMPDIR": ray, "VERL_NPU_WEIGHT_SYNC_TIMEOUT": "20"}
        console = struck.folder / "console.log"
        watch.start()
        process.run(_command(struck), os.environ | ours, struck.folder, console, 900.0, lambda: _look(struck))
    struck.over = True
    watch.join()
    struck.said = struck.said or diagnose([struck.log])
    return struck


def _command(struck: Struck) -> list[str]:
    job, kept = struck.fault.job, f"trainer.default_local_dir={struck.checkpoints}"
    asked = ["--job", job, "--steps", "400", "--timeout", "800", "--output", str(struck.folder / "out")]
    script = [sys.executable, str(SCRIPTS / "smoke.py"), "--no-venv", "--pin", "v0.6.1"]
    if job == "one_step_off":
        script = [str(SCRIPTS / "smoke.sh"), "--pin", "ccd7d934", "--verl", str(CHECKOUT)]
    return [*script, *asked, "--", *_SETTINGS, kept, *struck.fault.settings]


def _watch(struck: Struck) -> None:
    """Strike as soon as the job is in the phase, after it has trained on, or while it loads."""
    fault, ready = struck.fault, False
    while not struck.over:
        time.sleep(_EVERY)
        resumes = fault.phase == "resume" and struck.resumed > 0
        ready = ready or resumes or f"step:{struck.resumed + 1} - " in _text(struck.log)
        titles = _titles() if ready else {}
        there = [pid for pid, title in titles.items() if re.match(PHASES[fault.phase], title)]
        if there and (fault.phase != "save" or struck.unmarked):
            for pid in sorted(_victims(struck, titles, there))[-1:]:
                os.kill(pid, fault.signal)
                struck.pid, struck.when = pid, time.monotonic()
                return


def _victims(struck: Struck, titles: Mapping[int, str], there: Sequence[int]) -> Sequence[int]:
    victim = struck.fault.victim
    if victim in TITLES:
        return [pid for pid, title in titles.items() if re.search(TITLES[victim], title)]
    role = "actor" if victim == "rank" else "rollout"
    return [int(pid) for pid in re.findall(rf"\({role} \S+ pid (\d+)\)", _text(struck.log))] or there


def _titles() -> dict[int, str]:
    return {pid: _text(Path(f"/proc/{pid}/cmdline")) for pid in descendants(os.getpid())}


def _look(struck: Struck) -> None:
    if not struck.when or struck.seconds is not None:
        return
    drivers = [pid for pid, title in _titles().items() if "main_ppo" in title]
    since = time.monotonic() - struck.when
    if not drivers:
        struck.seconds = since
    elif since > _PATIENCE:
        command = [sys.executable, "-m", "verl_npu", "doctor", "--hang", str(min(drivers)), "--json"]
        struck.hang = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        struck.said = diagnose([struck.log])
        raise TimeoutError


def marked(checkpoints: Path) -> int:
    """The step of the last whole checkpoint; 0 if there is none."""
    return int(_text(checkpoints / "latest_checkpointed_iteration.txt") or 0)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def row(struck: Struck) -> str:
    """One line of what was said of a job."""
    root, verdict = (struck.said.root, struck.said.verdict.value) if struck.said else (None, "")
    named = (root.name or root.event.error[:60], str(root.event.process)) if root else ("nothing", "")
    ended = "hangs" if struck.seconds is None else f"{struck.seconds:.0f} s"
    trained = f"resumed from {struck.resumed}, trained to {struck.said.steps if struck.said else 0}"
    left = f"unmarked: {', '.join(struck.unmarked)}; cut short: {struck.cut_short}"
    hang = f"{struck.hang.get('verdict', '')}: {struck.hang.get('why', '')}"
    return " | ".join((str(struck.fault), f"pid {struck.pid}", ended, verdict, *named, trained, left, hang))
