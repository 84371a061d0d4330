"""Runs a scaled-down trainer on virtual NPUs in a sandbox, and reads its steps while it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from verl_npu import environment, progress
from verl_npu.ascend.variables import VIRTUAL_CACHE, VIRTUAL_NPUS
from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from ..jobs.capture import fresh_home
from ..jobs.confined import named, sandbox_of, script_paths
from ..jobs.job import Job
from ..jobs.trainer import Trainer, is_of_cluster
from ..logs.training import Steps
from ..processes import captured, own_python
from ..sandbox import Ended, Limits, Sandbox, available_memory, check_possible, device_cache, run
from ..sandbox.copies import Copies
from ..secrecy.variables import allowed
from .rules import Change

_PROCESSES, _WRITTEN = 4096, 64 << 30
_CONVERSION_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a training run."""

    ended: Ended
    steps: Mapping[int, Mapping[str, float]]
    logs: tuple[Path, ...]
    """The driver's log, followed by the logs of Ray's workers."""
    left_out: tuple[str, ...]
    """Variables that the script exports but that the run did not get."""


def command_of(trainer: Trainer, changes: Sequence[Change], npus: int, options: Sequence[str]) -> list[str]:
    """Return the rehearsal's command: the script's command, followed by the changes."""
    start = [sys.executable]
    if trainer.ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc-per-node={npus}"]
    named = [trainer.module] if trainer.module.endswith(".py") else ["-m", trainer.module]
    return [*start, *named, *options, *trainer.overrides, *(change.override() for change in changes)]


def _converter(tree: Path) -> Path | None:
    """Return the program in the source tree that converts a model for Megatron's distributed checkpointing, or None if
    the source tree has no such program."""
    found = tree / "scripts" / "converter_hf_to_mcore.py"
    return found if found.is_file() else None


def written(folder: Path) -> Path:
    """Return the subfolder of a rehearsal's folder that the rehearsed programs can write to. Only verl-npu writes to
    the other parts of the folder."""
    return folder / "run"


def convert(job: Job, model: Path, folder: Path, npus: int, unconfined: bool) -> str:
    """Convert the model to a distributed Megatron checkpoint with the conversion script of the verl source tree.
    Return an error message, or an empty string if the conversion succeeded."""
    program = _converter(job.tree)
    if program is None:
        return _("the source tree has no converter")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1"]
    target = str(written(folder) / "mcore")
    command = [*start, str(program), "--hf_model_path", str(model), "--output_path", target]
    variables, _unused = _variables(job.trainer, job.tree, folder, npus, True, unconfined)
    # The converter's manifest would be mistaken for the job's.
    del variables[environment.MANIFEST_DIR.name]
    log = folder / "convert.log"
    sandbox, temporary = _sandbox(job.trainer, job.tree, folder, variables, [model], unconfined)
    with progress.step(_("converting the model for Megatron")):
        ended = run(sandbox, command, job.tree, variables, _limits(_CONVERSION_SECONDS), log)
    _remove(temporary)
    if ended.status == 0 and not ended.limit:
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if re.search(r"\wError: ", line)]
    return ended.limit or (
        lines[0].partition("]: ")[2] or lines[0] if lines else _("status {status}").format(status=ended.status)
    )


def _limits(seconds: float) -> Limits:
    return Limits(seconds, _PROCESSES, output=1 << 22, memory=available_memory(), written=_WRITTEN)


def prepare_device(npus: int) -> None:
    """Compile the virtual device before the sandbox starts. If it were compiled inside, the result would be lost.

    Raises:
        CommandError: the device cannot be loaded.
    """
    with progress.step(_("loading the virtual device (compiled at the first use)")):
        tried = captured(own_python("-c", "import torch, torch_npu"), env=os.environ | {VIRTUAL_NPUS: str(npus)})
    if tried.returncode != 0:
        raise CommandError(
            subject=_("the virtual Ascend"),
            expected=_("a virtual device that loads in this environment"),
            found=(tried.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix=_(
                "install g++ and virtual-ascend (its wheel, or packages/virtual-ascend of the checkout), and "
                "check with `VIRTUAL_ASCEND=2 python -c 'import torch'`"
            ),
        )


def train(
    command: Sequence[str],
    trainer: Trainer,
    tree: Path,
    folder: Path,
    npus: int,
    seconds: float,
    told: Callable[[int, Mapping[str, float]], None],
    reads: Sequence[Path] = (),
    unconfined: bool = False,
    virtual: bool = True,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Run `command` in a sandbox that allows writing only to a part of `folder`. Return the result.

    Args:
        command: the command to run.
        trainer: the script's trainer.
        tree: the source tree.
        folder: the rehearsal's folder.
        npus: the number of NPUs.
        seconds: the time limit.
        told: a callback that receives each step and its metrics.
        reads: additional paths that the command can read.
        unconfined: whether to run without a sandbox.
        virtual: whether to use virtual NPUs. Otherwise, the machine's NPUs are used, and the variables of the user's
            environment that concern a cluster or its NPUs are passed on.
        more: additional variables for all processes.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    check_possible(unconfined)
    variables, left_out = _variables(trainer, tree, folder, npus, virtual, unconfined)
    variables |= more
    sandbox, temporary = _sandbox(trainer, tree, folder, variables, reads, unconfined)
    log = folder / "train.log"
    workers = Copies(temporary, "ray/session_2*/logs/worker-*", folder / "ray-logs")
    # The workers' .err files contain no steps.
    steps = Steps(lambda: [path for path in (log, *workers.poll()) if path.suffix != ".err" and path.exists()])

    with progress.step("training") as training:

        def tick() -> None:
            for step in steps.poll():
                training.detail = _("step {step} finished").format(step=step)
                told(step, steps.by_step[step])

        ended = run(sandbox, command, tree, variables, _limits(seconds), log, tick)
    Copies(written(folder) / "manifests", "*.json", folder / "manifests").poll()
    _remove(temporary)
    return Run(ended, dict(steps.by_step), (log, *workers.poll()), tuple(left_out))


def _sandbox(
    trainer: Trainer,
    tree: Path,
    folder: Path,
    variables: dict[str, str],
    reads: Sequence[Path],
    unconfined: bool,
) -> tuple[Sandbox | None, Path]:
    """Return a run's sandbox and its temporary folder. Without a sandbox, the run gets the user's own home folder.

    The temporary folder is below /tmp, because Ray's socket paths must be short.
    """
    own = written(folder)
    own.mkdir(exist_ok=True)
    if unconfined:
        temporary = Path(tempfile.mkdtemp(prefix="vn", dir="/tmp"))
        variables |= {"HOME": str(Path.home()), "TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
        return None, temporary
    # A new folder for each run, so that no program gets the files of an earlier one.
    temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    temporary.chmod(0o755)
    return sandbox_of(trainer, tree, reads, {Path("/tmp"): temporary, own: own}), temporary


def _remove(folder: Path) -> None:
    """Delete a folder with rm, which handles any depth and does not follow links."""
    subprocess.run(["rm", "-rf", "--", str(folder)], env={}, capture_output=True, check=False)


def _variables(
    trainer: Trainer, tree: Path, folder: Path, npus: int, virtual: bool, unconfined: bool
) -> tuple[dict[str, str], list[str]]:
    exported = {name: value for name, value in trainer.exports.items() if not is_of_cluster(name)}
    left_out = sorted(name for name in trainer.exports if name not in exported)
    paths = script_paths(trainer)
    mindspeed = environment.MINDSPEED.text()
    # Ray's workers do not start in the tree, but must import the same verl as the driver.
    source = [str(tree)] if (tree / "verl" / "__init__.py").is_file() else []
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environ = dict(os.environ) if unconfined else allowed(os.environ, named(trainer))
    inherited = {name: value for name, value in environ.items() if not (virtual and is_of_cluster(name))}
    variables = inherited | exported
    variables |= {
        "HOME": str(fresh_home()),
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join([*source, *([mindspeed] if mindspeed else []), *own, *paths]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        **({VIRTUAL_NPUS: str(npus)} if virtual else {}),
        environment.MANIFEST_DIR.name: str(written(folder) / "manifests"),
        VIRTUAL_CACHE: str(device_cache()),
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise, Ray starts a worker for each configured CPU, and there are many more of them than real CPUs.
        "RAY_prestart_worker_first_driver": "0",
        # On a busy machine, Ray's only node responds late, and Ray has considered it dead.
        "RAY_health_check_timeout_ms": "60000",
        "RAY_health_check_failure_threshold": "20",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        # Otherwise, vLLM's build for CPUs takes 4 GiB for its cache with any model.
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return variables, left_out
