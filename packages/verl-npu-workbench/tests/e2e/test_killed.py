"""Jobs on virtual NPUs of which one process is killed, or stopped, in one phase: each ends, or its hang has a name.

A job resumes from the state that the faults before it have left, and is struck once it has trained a step on top of
that. So every job but the first shows that a resume does not stumble over the previous fault. With `-rP` each test
prints its line of docs/records/killed-processes.json.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import process
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, diagnose
from verl_npu_workbench.processes import descendants

from verl_npu.manifest import read_manifests

SCRIPTS = Path(__file__).parents[4] / "scripts"
CHECKOUT = Path(os.environ.get("VERL_NPU_UPSTREAMS", ""), "verl-ccd7d934")
_SETTINGS = ("data.dataloader_num_workers=0", "trainer.save_freq=1", "trainer.resume_mode=auto")

TITLES = {"server": "HttpServer|VirtualServer", "engine": "VLLM::EngineCore"}
TITLES |= {"raylet": "/raylet", "gcs": "/gcs_server"}
"""The name of each victim's program. The log tells which process is a rank of the trainer or of the rollout."""
V1_TITLES = {"rank": "WorkerDict", "receiver": "CheckpointEngineWorker", "agent": "AgentLoopWorker"}
V1_TITLES |= {"storage": "SimpleStorageUnit", "controller": "TransferQueueController"}
PHASES = {"sync": "sync_rollout_weights|update_weights", "rollout": "generate_sequences", "train": "update_actor"}
PHASES |= {"save": "save_checkpoint", "resume": "load_checkpoint"}
"""The method by which Ray titles a process in each phase."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The signal that strikes a process of a job, and the phase in which it strikes."""

    job: str
    phase: str
    victim: str
    signal: signal.Signals = signal.SIGKILL
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.job, self.phase, self.victim, self.signal.name, *self.settings))


FAULTS = (
    *(Fault("grpo", phase, victim) for phase in [*PHASES][1:] for victim in ("rank", "raylet", "gcs")),
    *(Fault("one_step_off", phase, victim) for phase in [*PHASES][:4] for victim in ("rank", "rollout", *TITLES)),
    *(Fault("one_step_off", "resume", victim) for victim in ("rank", *TITLES)),
    Fault("grpo", "train", "rank", signal.SIGSTOP),
    Fault("one_step_off", "sync", "rollout", signal.SIGSTOP),
    # The servers answer while the trainer's ranks are updated.
    *(Fault("separate_async", phase, victim) for phase in ("sync", "train") for victim in ("server", *V1_TITLES)),
    *(Fault("separate_async", "train", victim, signal.SIGSTOP) for victim in ("server", *V1_TITLES)),
    *(Fault("separate_async", "sync", victim, signal.SIGSTOP) for victim in ("rank", "receiver")),
    *(Fault("separate_async", phase, victim) for phase in ("save", "resume") for victim in ("rank", "controller")),
    # verl before v0.7.1 removes the old checkpoint before it writes the new one: nothing can be resumed after this.
    Fault("grpo", "save", "rank", settings=("trainer.max_actor_ckpt_to_keep=1",)),
)


@dataclass(slots=True)
class Struck:
    """A job, its fault, and the result."""

    fault: Fault
    folder: Path
    checkpoints: Path
    resumed: int
    """The step from which it resumed; 0 for none."""
    said: Diagnosis | None = None
    """The diagnosis by `doctor --log`; while the job hangs, if it did."""
    pid: int = 0
    seconds: float | None = None
    """The seconds from the fault to the end of verl's own process; None if it hangs."""
    hang: dict[str, object] = field(default_factory=dict)
    """The diagnosis by `doctor --hang` during the hang."""
    when: float = 0.0
    trained: int = 0
    """The number of steps that were trained before the fault."""
    over: bool = False

    @property
    def log(self) -> Path:
        """The path of the job's output."""
        return next(self.folder.glob("out/*/train.log"), self.folder / "console.log")

    @property
    def steps(self) -> int:
        """The number of steps that were trained so far."""
        return _text(self.log).count(" - global_seqlen/min:")

    @property
    def unmarked(self) -> list[str]:
        """The folders of checkpoints that verl has not marked as complete."""
        last = marked(self.checkpoints)
        return [each.name for each in self.checkpoints.glob("global_step_*") if int(each.name[12:]) > last]


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
    if job == "separate_async":
        script = [str(SCRIPTS / "smoke.sh"), "--pin", "v0.9.1"]
    return [*script, *asked, "--", *_SETTINGS, kept, *struck.fault.settings]


def _watch(struck: Struck) -> None:
    """Strike as soon as the job is in the phase, after it has trained on, or while it loads."""
    fault, ready = struck.fault, False
    while not struck.over:
        time.sleep(0.02)
        resumes = fault.phase == "resume" and struck.resumed > 0
        ready = ready or resumes or f"step:{struck.resumed + 1} - " in _text(struck.log)
        titles = _titles() if ready else {}
        there = [pid for pid, title in titles.items() if re.match(rf"ray::\w+\.\w*({PHASES[fault.phase]})\b", title)]
        if there and (fault.phase != "save" or struck.unmarked):
            for pid in sorted(_victims(struck, titles, there))[-1:]:
                os.kill(pid, fault.signal)
                struck.pid, struck.when, struck.trained = pid, time.monotonic(), struck.steps
                return


def _victims(struck: Struck, titles: Mapping[int, str], there: Sequence[int]) -> Sequence[int]:
    victim = struck.fault.victim
    if program := (TITLES | (V1_TITLES if struck.fault.job == "separate_async" else {})).get(victim):
        return [pid for pid, title in titles.items() if re.search(program, title.partition("\0")[0])]
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
    elif since > 130:
        command = [sys.executable, "-m", "verl_npu", "doctor", "--hang", str(min(drivers)), "--json"]
        struck.hang = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        struck.said = diagnose([struck.log])
        raise TimeoutError


def marked(checkpoints: Path) -> int:
    """Return the step of the last complete checkpoint; 0 if there is none."""
    return int(_text(checkpoints / "latest_checkpointed_iteration.txt") or 0)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.mark.e2e
@pytest.mark.nightly("verl_npu_workbench/diagnosis", "verl_npu_workbench/hanging", "verl_npu/features/weight_sync")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_it_ends_or_its_hang_has_a_name(fault: Fault, folder: Path, pin: str, heeds_ctrl_c: None) -> None:
    if fault.job == "one_step_off" and not CHECKOUT.is_dir():
        pytest.skip("set VERL_NPU_UPSTREAMS to the folder with a checkout verl-ccd7d934")
    if fault.phase == "resume" and not marked(folder / fault.job):
        pytest.skip("there is no checkpoint: run the faults before it, too")
    struck = strike(fault, folder)
    assert struck.pid, f"the job never came to the phase: {struck.log}"
    said = struck.said or diagnose([struck.log])
    root, why = said.root, struck.hang.get("why")
    named = (root.name or root.event.error, root.event.process) if root else ("nothing",)
    went_on = struck.steps - struck.trained if struck.seconds is None else None
    print(fault, struck.seconds, went_on, said.verdict.value, *named, struck.resumed, struck.unmarked, why, sep=" | ")
    assert not [error for each in struck.log.parent.glob("manifests") for error in read_manifests(each)[1]]
    # One step may have been on its way.
    if (went_on or 0) < 2 and (said.verdict is Conclusion.NONE or root is None):
        assert struck.hang.get("verdict") in ("hangs", "stands still")
