"""Runs a scaled trainer on virtual NPUs, in a sandbox, and reads its steps as they come."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import environment
from ...ascend.variables import VIRTUAL_CACHE, VIRTUAL_NPUS
from ...errors import RehearsalError
from ..jobs.job import Job
from ..jobs.trainer import Trainer, is_of_cluster
from ..logs.training import Steps
from ..sandbox import Ended, Limits, Sandbox, device_cache, importable, run, why_none
from .rules import Change

_PROCESSORS = Path("/sys/devices/system")
"""Where programs look for the machine's processors: vLLM's build for CPUs ends if it finds none."""
_PROCESSES = 4096
_CONVERSION_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a training."""

    ended: Ended
    steps: Mapping[int, Mapping[str, float]]
    logs: tuple[Path, ...]
    """The driver's first, then those of Ray's workers."""
    left_out: tuple[str, ...]
    """Exports of the script that the run did not get."""


def command_of(trainer: Trainer, changes: Sequence[Change], npus: int, options: Sequence[str]) -> list[str]:
    """Return the command that the rehearsal starts: the script's own, and what is changed after it."""
    start = [sys.executable]
    if trainer.ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc-per-node={npus}"]
    named = [trainer.module] if trainer.module.endswith(".py") else ["-m", trainer.module]
    return [*start, *named, *options, *trainer.overrides, *(change.override() for change in changes)]


def _converter(tree: Path) -> Path | None:
    """Return the tree's program that converts a model for Megatron's distributed checkpointing, if it has one."""
    found = tree / "scripts" / "converter_hf_to_mcore.py"
    return found if found.is_file() else None


def convert(job: Job, model: Path, folder: Path, npus: int) -> str:
    """Make `folder`/mcore, the model's distributed checkpoint, by the tree's own program; return why it could not."""
    program = _converter(job.tree)
    if program is None:
        return "this tree has no converter"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1"]
    command = [*start, str(program), "--hf_model_path", str(model), "--output_path", str(folder / "mcore")]
    variables, _ = _variables(job.trainer, job.tree, folder, npus)
    # What the converter's process did is not what the job's did.
    del variables[environment.MANIFEST_DIR.name]
    limits = Limits(_CONVERSION_SECONDS, processes=_PROCESSES)
    log = folder / "convert.log"
    sandbox = None if why_none() else _sandbox(job.tree, folder, variables, [model])
    ended = run(sandbox, command, job.tree, variables, limits, log)
    if ended.status == 0 and not ended.limit:
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if re.search(r"\wError: ", line)]
    return ended.limit or (lines[0].partition("]: ")[2] or lines[0] if lines else f"status {ended.status}")


def prepare_device(npus: int) -> None:
    """Have the virtual device compiled, which a sandbox could not keep.

    Raises:
        RehearsalError: it does not load.
    """
    tried = subprocess.run(
        [sys.executable, "-c", "import torch, torch_npu"],
        env=os.environ | {VIRTUAL_NPUS: str(npus)},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        raise RehearsalError(
            subject="the virtual Ascend",
            expected="it to load in this environment",
            found=(tried.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix="install virtual-ascend (its wheel, or packages/virtual-ascend of the checkout) and g++ here; "
            "`VIRTUAL_ASCEND=2 python -c 'import torch'` must work",
        )


def train(
    command: Sequence[str],
    trainer: Trainer,
    tree: Path,
    folder: Path,
    npus: int,
    seconds: float,
    progress: Callable[[int, Mapping[str, float]], None],
    reads: Sequence[Path] = (),
) -> Run:
    """Run `command` and return what came of it; in a sandbox, if there can be one, that writes to `folder` alone."""
    variables, left_out = _variables(trainer, tree, folder, npus)
    # Ray puts sockets below /tmp, whose paths must be short; its workers' logs are wanted afterwards.
    temporary, sandbox = folder / "tmp", None
    if why_none():
        temporary = Path(tempfile.mkdtemp(prefix="vn", dir="/tmp"))
        variables |= {"HOME": str(Path.home()), "TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
    else:
        sandbox = _sandbox(tree, folder, variables, reads)
    log = folder / "train.log"
    steps = Steps(lambda: [path for path in (log, *_worker_logs(temporary)) if path.exists()])

    def tick() -> None:
        for step in steps.poll():
            progress(step, steps.by_step[step])

    ended = run(sandbox, command, tree, variables, Limits(seconds, processes=_PROCESSES, output=1 << 22), log, tick)
    kept = _kept(temporary, folder / "ray-logs")
    shutil.rmtree(temporary, ignore_errors=True)
    return Run(ended, dict(steps.by_step), (log, *kept), tuple(left_out))


def _sandbox(tree: Path, folder: Path, variables: Mapping[str, str], reads: Sequence[Path]) -> Sandbox:
    """What a run sees: all that it imports from, the tree by its parts, `reads`, and its own folder to write to."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    seen = (*(path.resolve() for path in reads), *importable(tree), *_sources(variables, tree))
    return Sandbox(
        read_only=(*seen, device_cache(), *([_PROCESSORS] if _PROCESSORS.is_dir() else [])),
        tree=tree,
        writable={Path("/tmp"): temporary, folder: folder},
        folders=(Path(variables["HOME"]),),
    )


def _worker_logs(temporary: Path) -> list[Path]:
    return sorted(temporary.glob("ray/session_2*/logs/worker-*.out"))


def _kept(temporary: Path, target: Path) -> list[Path]:
    """Keep the logs of Ray's workers, which go with its folder otherwise."""
    kept = []
    for path in sorted(temporary.glob("ray/session_2*/logs/worker-*")):
        if path.stat().st_size:
            target.mkdir(exist_ok=True)
            kept.append(Path(shutil.move(path, target / path.name)))
    return kept


def _variables(trainer: Trainer, tree: Path, folder: Path, npus: int) -> tuple[dict[str, str], list[str]]:
    exported = {name: value for name, value in trainer.exports.items() if not is_of_cluster(name)}
    left_out = sorted(name for name in trainer.exports if name not in exported)
    paths = [entry for entry in trainer.exports.get("PYTHONPATH", "").split(os.pathsep) if Path(entry).is_dir()]
    mindspeed = environment.MINDSPEED.text()
    # Workers of Ray do not start in the tree, and must not take another verl than the driver.
    source = [str(tree)] if (tree / "verl" / "__init__.py").is_file() else []
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = {name: value for name, value in os.environ.items() if not is_of_cluster(name)}
    variables = inherited | exported
    variables |= {
        "HOME": "/root" if os.getuid() == 0 else f"/home/{os.environ.get('USER', 'user')}",
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join([*source, *([mindspeed] if mindspeed else []), *own, *paths]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        VIRTUAL_NPUS: str(npus),
        environment.MANIFEST_DIR.name: str(folder / "manifests"),
        VIRTUAL_CACHE: str(device_cache()),
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would start a worker for each of the CPUs that it is told of, many more than there are.
        "RAY_prestart_worker_first_driver": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        # vLLM's build for CPUs takes 4 GiB for its cache otherwise, whatever the model.
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return variables, left_out


def _sources(variables: Mapping[str, str], tree: Path) -> list[Path]:
    entries = [Path(entry) for entry in variables["PYTHONPATH"].split(os.pathsep) if entry]
    # The tree is there by its parts, so that its root can be written to.
    return [entry for entry in entries if entry.is_dir() and entry != tree]
