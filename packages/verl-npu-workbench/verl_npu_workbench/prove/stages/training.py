"""Trains a small model with GRPO, using verl's own trainer, and compares the memory use with a plan that was made
before.

The trainer, the configuration, and the workers are the installed verl's. The model, the data, and the reward are
created as in a rehearsal. The rollout engine is the installed one. On virtual NPUs without an engine, transformers'
`generate` replaces it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from verl_npu.errors import VerlNpuError

from ...extras import is_installed
from ...jobs.capture import capture, tree_of
from ...jobs.job import compose
from ...jobs.keys import ENGINE, NPUS
from ...jobs.settings import Settings
from ...jobs.trainer import Trainer, trainer_of, trainer_of_command, with_secrets
from ...layers.report import lines_of
from ...layers.running import compare_layers
from ...processes import captured, own_python
from ...rehearse.outcome import Kind, judge
from ...rehearse.preparation import Request
from ...rehearse.rehearsal import scale_down
from ...rehearse.rules import Change
from ...rehearse.training import Run, command_of, train
from ...sandbox import why_none
from ..clock import MOST
from ..record import NotPossible, Wrong
from .setup import Setup, require

STEPS = 3
_GRPO = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=gsm8k/train.parquet",
    "data.val_files=gsm8k/test.parquet",
    "data.train_batch_size=64",
    "data.max_prompt_length=512",
    "data.max_response_length=512",
    "actor_rollout_ref.model.path=Qwen3-0.6B",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.rollout.enforce_eager=True",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.val_before_train=False",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
)
_ONE_STEP_OFF = (
    *_GRPO,
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "critic.strategy=fsdp2",
    "trainer.n_gpus_per_node=4",
    "rollout.n_gpus_per_node=4",
    "rollout.nnodes=1",
)
_SHORT: Mapping[str, object] = {
    "trainer.total_training_steps": STEPS,
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.logger": ["console"],
}
"""Changes to the user's own script that make it run only a few steps and save nothing."""
_ALLOWED = 1.1
"""The largest allowed ratio of the memory of a training run to the planned memory."""
_PEAK = "perf/max_memory_allocated_gb"
_STEP = "timing_s/step"
_GRADIENT = "actor/grad_norm"
_SHOWN = ("actor/pg_loss", "critic/rewards/mean", "training/rollout_probs_diff_mean")
_GIB = float(1 << 30)
_MEANINGS = {
    "grpo": "GRPO does not train on these NPUs",
    "one_step_off": "a job whose rollout has NPUs of its own does not train on these NPUs",
    "recipe": "your own script does not train on these NPUs",
}
_OTHER_VALUES = "the model that answers would not be the model that is trained"
_NO_PLAN = "it would be unknown whether a job fits before it runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """A training run that is planned and then run."""

    trainer: Trainer
    """The trainer, as it is in the script."""
    settings: Settings
    """The script's settings."""
    tree: Path
    folder: Path
    command: Sequence[str]
    """The command that starts the trainer with changed settings."""
    npus: int


def run(setup: Setup) -> None:
    """Plan each training run, record the plan, run the training, and compare the run with the plan."""
    npus = setup.npus()
    require("verl", "ray", "hydra", "yaml", "transformers")
    if setup.recipe:
        _tried(setup, "recipe", partial(_from_script, setup, Path(setup.recipe[0]), setup.recipe[1:]))
        return
    _tried(setup, "grpo", partial(_small, setup, "grpo", "verl.trainer.main_ppo", _GRPO, min(npus, 2)))
    module = "verl.experimental.one_step_off_policy.main_ppo"
    _tried(setup, "one_step_off", partial(_small, setup, "one_step_off", module, _ONE_STEP_OFF, npus))


def _tried(setup: Setup, name: str, made: Callable[[], _Training]) -> None:
    training = cache(partial(_said, made))
    setup.record.check(f"plan of {name}", lambda: _planned(setup, name, training()), _NO_PLAN)
    setup.record.check(name, lambda: _run(setup, name, training()), _MEANINGS[name])
    if name != "one_step_off":  # it has the same model and the same engine
        setup.record.check(f"layers of {name}", lambda: _layers(setup, training()), _OTHER_VALUES)


def _said(made: Callable[[], _Training]) -> _Training:
    try:
        return made()
    except VerlNpuError as error:
        raise Wrong(str(error), "a training job that can be started") from error


def _small(setup: Setup, name: str, module: str, settings: Sequence[str], npus: int) -> _Training:
    """Return the training run of a small model, scaled down like a job in a rehearsal."""
    if not is_installed(module):
        raise NotPossible(f"the installed verl has no {module}")
    if name != "grpo" and npus < 2:
        raise NotPossible("the trainer and the rollout need one NPU each, and this machine has only one")
    folder = setup.scratch / name
    folder.mkdir(exist_ok=True)
    job = compose(trainer_of_command(["python3", "-m", module, *settings], folder, {}), folder, unconfined=True)
    scaled = scale_down(job, name, Request(output=folder, steps=STEPS, npus=npus, unconfined=True))
    if not setup.simulated and any(change.key == ENGINE for change in scaled.changes):
        raise NotPossible("no installed rollout engine supports these NPUs; install vllm and vllm-ascend")
    return _Training(
        trainer=job.trainer,
        settings=job.settings,
        tree=folder,
        folder=scaled.folder,
        command=scaled.command,
        npus=scaled.layout.all_npus,
    )


def _from_script(setup: Setup, script: Path, arguments: Sequence[str]) -> _Training:
    """Return the training run of the user's script at its full size, for a few steps."""
    tree = tree_of(script).resolve()
    calls = capture(script, tree, arguments, os.environ, unconfined=bool(why_none()))
    trainer = with_secrets(trainer_of(calls), os.environ)
    settings = compose(trainer, tree, unconfined=True).settings
    changes = [
        Change(key=key, before=settings.get(key), after=value, rule="steps")
        for key, value in _SHORT.items()
        if key in settings
    ]
    folder = setup.scratch / "recipe"
    folder.mkdir(exist_ok=True)
    npus = settings.whole(NPUS, 1)
    return _Training(
        trainer=trainer,
        settings=settings,
        tree=tree,
        folder=folder,
        command=command_of(trainer, changes, npus, trainer.options),
        npus=npus,
    )


# The plan.


def _file(setup: Setup, name: str) -> Path:
    """Return the file that keeps a training run's plan until the training has run."""
    return setup.scratch / f"plan-{name}.json"


def _planned(setup: Setup, name: str, training: _Training) -> tuple[str, dict[str, float]]:
    """Run `verl-npu plan` for the training. The plan is saved before the training runs."""
    if not is_installed("virtual_ascend"):
        raise NotPossible("a plan needs the package virtual-ascend, which is not installed")
    words = ["--json", "--no-tries", "--unconfined", "--output", str(setup.scratch / f"plan-{name}")]
    words += ["--npu", "a3" if "910_93" in setup.device else "a2", "--timeout", f"{_by_the_wall(setup):.0f}"]
    done = captured(
        own_python("-m", "verl_npu", "plan", *words, "--", "python3", *training.command[1:]),
        cwd=training.tree,
        env={**os.environ, **training.trainer.exports},
    )
    try:
        said = json.loads(done.stdout)
        peaks = {str(phase["phase"]): float(phase["tensors"]) for phase in said["phases"] if phase["tensors"]}
        seconds = {str(span["phase"]): (float(span["least"]), float(span["most"])) for span in said["seconds"]}
        verdict, worst = str(said["verdict"]), max(peaks, key=lambda phase: peaks[phase])
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise Wrong(f"`verl-npu plan` exited with status {done.returncode}: {last}", "a plan") from None
    content = json.dumps({"verdict": verdict, "bytes": peaks, "seconds": seconds}).encode()
    _file(setup, name).write_bytes(content)
    figures = {f"GiB, {phase}": size / _GIB for phase, size in peaks.items()}
    for phase, (least, most) in seconds.items():
        figures |= {f"seconds at best, {phase}": least, f"seconds at worst, {phase}": most}
    text = f"{verdict}; {peaks[worst] / _GIB:.3f} GiB of tensors at most, in {worst} (SHA-256 {_digest(content)}…)"
    return text, figures


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# Trainer and engine.


def _layers(setup: Setup, training: _Training) -> tuple[str, dict[str, float]]:
    """Compare what the training's engine and trainer compute, layer by layer."""
    try:
        result = compare_layers(training.settings, setup.scratch)
    except VerlNpuError as error:
        raise NotPossible(str(error)) from error
    figures = {f"{name} of engine and trainer": float(value) for name, value in (result["numbers"] or {}).items()}
    said = " ".join(lines_of(result))
    if result["first"]:
        raise Wrong(said, "each operator to differ from the reference only by rounding", figures)
    return f"{result['engine']}, {result['trainer']}: {said}", figures


# The run.


def _run(setup: Setup, name: str, training: _Training) -> tuple[str, dict[str, float]]:
    """Run the steps, and judge them."""
    done = train(
        training.command,
        training.trainer,
        training.tree,
        training.folder,
        training.npus,
        _by_the_wall(setup),
        lambda step, metrics: None,
        unconfined=True,
        virtual=setup.simulated,
    )
    outcome = judge(done, STEPS, training.tree)
    if outcome.kind is not Kind.TRAINED:
        failure = outcome.failure
        said = f"{failure.process}, {failure.phase}: {failure.error}" if failure else outcome.kind.value
        raise Wrong(f"{outcome.steps} of {STEPS} steps; {said}", f"{STEPS} steps")
    figures = _figures(done)
    _check_numbers(done, figures)
    return (
        f"{STEPS} steps on {training.npus} NPU{'' if training.npus == 1 else 's'}; {_beside(setup, name, figures)}",
        figures,
    )


def _by_the_wall(setup: Setup) -> float:
    """Return an upper bound, in seconds, on the remaining wall time. The stage itself is terminated when its counted
    time is over."""
    return MOST * max(setup.left, 1.0)


def _figures(done: Run) -> dict[str, float]:
    last = done.steps[max(done.steps)]
    figures = {key: last[key] for key in (_GRADIENT, *_SHOWN, _STEP) if key in last}
    peaks = [step[_PEAK] for step in done.steps.values() if _PEAK in step]
    return figures | ({"GiB of tensors": max(peaks)} if peaks else {})


def _check_numbers(done: Run, figures: Mapping[str, float]) -> None:
    gradients = [step[_GRADIENT] for number, step in done.steps.items() if number >= 1 and _GRADIENT in step]
    if not gradients or not all(map(math.isfinite, gradients)):
        raise Wrong(f"the gradient norms are {gradients}", "a finite number for each step", figures)
    if not any(gradients):
        raise Wrong("all gradients are zero", "a nonzero gradient in some step", figures)


def _beside(setup: Setup, name: str, figures: Mapping[str, float]) -> str:
    """Compare the training's memory with the plan. Raises Wrong if the training used more memory than was planned."""
    path, found = _file(setup, name), figures.get("GiB of tensors")
    if not path.is_file() or found is None:
        return "there is no plan to compare with" if found is not None else "verl did not report its memory"
    content = path.read_bytes()
    planned = max(json.loads(content)["bytes"].values()) / _GIB
    text = f"{found:.3f} GiB of tensors at most, planned {planned:.3f} (SHA-256 {_digest(content)}…)"
    if found > _ALLOWED * planned:
        raise Wrong(text, f"at most {_ALLOWED:g} times the planned memory", figures)
    return text
