"""One run from request to outcome: model, data, command, process, and results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu_workbench.logs.training import Steps
from verl_npu_workbench.rehearse import small_model

from harness import dataset, jobs, manifests, model, pins, process, reward
from harness.errors import BadInput, RunFailed
from harness.machine import Machine
from harness.request import Request
from verl_npu.language import gettext as _
from verl_npu.manifest import Manifest

_ENGINE_VARIABLES = {
    # Weights are updated after each step, and FRACTAL_NZ does not survive an update.
    "VLLM_ASCEND_ENABLE_NZ": "0",
    # Each rank's KV cache takes a share of this, and it is host memory.
    "VIRTUAL_ASCEND_MEMORY": "2",
    "OMP_NUM_THREADS": "1",
}

_ERROR = re.compile(r"^(\(\w+ pid=\d+\) )?([\w.]+\.)?\w*(Error|Exception): ")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. A run that did not finish also has an outcome."""

    request: Request
    machine: Machine
    plan: jobs.Plan
    log: Path
    ended: process.Ended
    values: list[float]
    """The job's metric at each step."""
    steps: dict[int, dict[str, float]]
    manifests: list[Manifest]

    @property
    def trained(self) -> bool:
        return self.ended.status == 0 and not self.ended.timed_out and len(self.values) == self.request.steps

    @property
    def failure(self) -> str:
        """The reason why the run is not considered a successful training run."""
        if self.ended.timed_out:
            return _("the time limit ended the run after {seconds:.0f} s, at step {step}").format(
                seconds=self.ended.seconds, step=len(self.values)
            )
        if self.ended.status != 0:
            return _("verl ended with status {status} after {steps} steps").format(
                status=self.ended.status, steps=len(self.values)
            )
        return _("expected {steps} steps with {metric}; found {found}").format(
            steps=self.request.steps, metric=jobs.JOBS[self.request.job].metric, found=len(self.values)
        )

    @property
    def steps_per_second(self) -> float:
        spent = sum(metrics.get("timing_s/step", 0.0) for metrics in self.steps.values())
        return len(self.values) / spent if spent else 0.0

    def as_json(self) -> dict[str, object]:
        """Return the content that outputs/quickstart.json and outputs/smoke.json have in common."""
        checkout = self.request.checkout
        known = self.request.pin.commit if checkout is None else checkout.revision
        return {
            "pin": self.request.pin.name,
            "revision": known or (checkout or self.request.pin).version,
            "simulated": self.machine.virtual,
            "steps": len(self.values),
            "reward": [],
            jobs.JOBS[self.request.job].label: self.values,
            "features": manifests.by_process(self.manifests),
            "seconds": round(self.ended.seconds, 1),
        }


def _plan(request: Request, machine: Machine, run_dir: Path) -> jobs.Plan:
    if request.model is None:
        job = jobs.JOBS[request.job]
        # verl's vLLM masks tokens beyond the tokenizer's vocabulary, and its trainer does not. With random weights
        # their probabilities would never agree.
        padded = request.rollout == pins.SMALL
        folder = run_dir / "model"
        if job.architecture:
            small_model.generate(small_model.architecture_of(job.architecture), model.LAYERS, folder)
        else:
            model.generate(folder, request.seed, job.key_value_heads, job.experts, padded=padded)
        chosen = str(folder)
    else:
        chosen = model.obtain(request.model)
    if request.data is None:
        train, test = dataset.generate(run_dir / "data", request.seed)
    else:
        train, test = dataset.obtain(request.data, run_dir / "data")
    return jobs.Plan(
        pin=request.pin,
        run_dir=run_dir,
        model=chosen,
        train=train,
        test=test,
        generated=request.model is None and request.data is None,
        reward=Path(reward.__file__) if request.data is None else None,
        steps=request.steps,
        npus=request.npus,
        seed=request.seed,
        virtual=machine.virtual,
        rollout=request.rollout,
        checkout=None if request.checkout is None else request.checkout.path,
    )


def _environment(request: Request, machine: Machine, run_dir: Path, ray_dir: Path) -> dict[str, str]:
    environment = dict(jobs.JOBS[request.job].environment) | dict(os.environ)
    # Do not join a cluster that somebody else runs on this machine.
    environment.pop("RAY_ADDRESS", None)
    environment |= {
        "VERL_NPU_MANIFEST_DIR": str(run_dir / "manifests"),
        "RAY_TMPDIR": str(ray_dir),
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would start a worker for each CPU, and we report many more CPUs to Ray than there are.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    sources = [str(_source(request.job, variable)) for variable in jobs.JOBS[request.job].sources]
    if sources:
        environment["PYTHONPATH"] = os.pathsep.join([*sources, *filter(None, [environment.get("PYTHONPATH")])])
    if request.checkout is not None:
        # Not even a __pycache__ may be written into a checkout.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if request.model is None and request.data is None:
        environment["HF_HUB_OFFLINE"] = "1"
    if machine.virtual:
        environment["VIRTUAL_ASCEND"] = str(machine.npus)
        environment["VIRTUAL_ASCEND_TORCH_NPU"] = "real" if request.torch_npu else "ours"
    engine = request.pin.engine
    if request.rollout != pins.SMALL and engine is not None:
        versions = {"VLLM_VERSION": engine.vllm, "VIRTUAL_ASCEND_TORCH_NPU_VERSION": engine.torch_npu}
        environment = _ENGINE_VARIABLES | versions | environment
    return environment


def _source(job: str, variable: str) -> Path:
    """Return the checkout that the variable specifies. Raise BadInput if the variable specifies no folder."""
    folder = os.environ.get(variable)
    if not folder or not Path(folder).is_dir():
        raise BadInput(
            _(
                "--job {job}: expected the environment variable {variable} to be the path of a checkout; found "
                "{folder!r}"
            ).format(job=job, variable=variable, folder=folder)
        )
    return Path(folder).resolve()


def _build_device(environment: dict[str, str], folder: Path) -> None:
    """Compile the virtual device before the clock starts. Raise RunFailed if the device does not load."""
    answer = subprocess.run(
        [sys.executable, "-c", "import torch, torch_npu"], env=environment, cwd=folder, check=False
    )
    if answer.returncode != 0:
        raise RunFailed(_("the virtual NPU does not load; see the error above"))


def train(request: Request, machine: Machine, progress: Callable[[int, dict[str, float]], None]) -> Outcome:
    """Run the job in a new folder below the output folder. Raise BadInput if the model or the data cannot be used."""
    job = jobs.JOBS[request.job]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    run_dir = request.output / f"{request.job}-{request.pin.name}-{stamp}-{os.getpid()}"
    try:
        (run_dir / "manifests").mkdir(parents=True)
    except OSError as error:
        raise BadInput(
            _("--output: expected a writable folder; found {folder}: {error}").format(
                folder=request.output, error=error
            )
        ) from error
    plan = _plan(request, machine, run_dir)
    log = run_dir / "train.log"
    # Ray puts sockets here, whose paths may have at most 107 characters. The run's own folder is too deep for that.
    ray_dir = Path(tempfile.mkdtemp(prefix="vn-"))
    steps = Steps(lambda: [path for path in (log, *ray_dir.glob("ray/session_2*/logs/worker-*.out")) if path.exists()])

    environment = _environment(request, machine, run_dir, ray_dir)

    def tick() -> None:
        for step in steps.poll():
            progress(step, steps.by_step[step])

    try:
        if machine.virtual:
            _build_device(environment, run_dir)
        ended = process.run(
            [sys.executable, *job.arguments(plan), *request.overrides],
            environment,
            run_dir,
            log,
            request.timeout,
            tick,
        )
        _keep_logs(ray_dir, run_dir / "ray-logs")
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
    return Outcome(
        request=request,
        machine=machine,
        plan=plan,
        log=log,
        ended=ended,
        values=steps.series(job.metric),
        steps=steps.by_step,
        manifests=manifests.read(run_dir / "manifests"),
    )


def _keep_logs(ray_dir: Path, kept: Path) -> None:
    kept.mkdir()
    for path in ray_dir.glob("ray/session_2*/logs/worker-*"):
        shutil.copy(path, kept)


def missing_evidence(outcome: Outcome) -> list[str]:
    """Return one line for each pattern that the job should have logged but did not log. Print how many weight syncs
    were verified."""
    job = jobs.JOBS[outcome.request.job]
    log = outcome.log.read_text(errors="replace")
    missing = [f"expected a line like {pattern!r} in the log; found none" for pattern in job.lines]
    missing = [line for line, pattern in zip(missing, job.lines, strict=True) if not re.search(pattern, log)]
    if job.evidence:
        count, steps = len({int(number) for number in re.findall(job.evidence, log)}), outcome.request.steps
        print(f"weight syncs after which the engine held the trainer's parameters bit for bit: {count}")
        if count < steps:
            missing.append(f"expected {steps} lines like {job.evidence!r} in the log; found {count}")
    return missing


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write a result file atomically, so that readers never see an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def tail(log: Path, lines: int = 12) -> str:
    """Return the last lines of a log, or the lines up to and including the first error if the log has an error. The
    result has at most `lines` lines."""
    text = [
        re.sub(r"\x1b\[[0-9;]*m", "", line)[:300]
        for line in log.read_text(errors="replace").splitlines()
        # A native backtrace hides the line that matters.
        if "frame #" not in line and "logging.cc" not in line
    ]
    last = next((number for number, line in enumerate(text) if _ERROR.search(line)), len(text) - 1)
    return "\n".join(text[max(0, last + 1 - lines) : last + 1])
