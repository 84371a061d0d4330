"""Runs one rehearsal from the job to its verdict, and formats the result as JSON and as a Markdown page."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from verl_npu import progress
from verl_npu.errors import CommandError
from verl_npu.language import gettext as _
from verl_npu.manifest import read_manifests

from ..jobs.job import Job
from ..jobs.keys import ENGINE
from ..kernels import report
from ..kernels.report import Report
from ..kernels.verdict import NOT_SHOWN as NOT_SHOWN_OF_KERNELS
from ..logs.metrics import LOSS, REWARD
from . import kernels
from .layout import Layout, layout_of
from .outcome import Outcome, judge
from .preparation import Request, chosen_architecture, engine_for, prepare
from .rules import RULES, Change, scale
from .training import Run, command_of, prepare_device, train, written

NOT_SHOWN = ("speed", _("memory at full size"), _("an NPU's numbers"), _("several machines"))
"""The properties of a job that no rehearsal shows."""
_PACKAGES = (
    "torch",
    "torch_npu",
    "transformers",
    "tensordict",
    "ray",
    "vllm",
    "vllm-ascend",
    "sglang",
    "megatron-core",
    "mbridge",
)
"""The packages whose versions are reported. verl is not in this list, because its pin is reported instead of its
version."""


@dataclass(frozen=True, slots=True)
class ScaledJob:
    """A job that is scaled down for a rehearsal: its layout, its changed settings, and its command."""

    job: Job
    folder: Path
    architecture: str
    layout: Layout
    changes: tuple[Change, ...]
    command: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A finished rehearsal."""

    scaled: ScaledJob
    run: Run
    outcome: Outcome
    seconds: float
    kernels: Report | None = None
    """The compiler's verdicts on the launched kernels, if the user asked for them."""


def scale_down(job: Job, name: str, request: Request) -> ScaledJob:
    """Create a small model and data, and scale the job's settings down.

    Raises:
        CommandError: the model's architecture is unknown, the number of NPUs is too small, or the trainer's rollout
            engine is not installed and has no substitute.
    """
    trainer, entry = job.trainer, job.entry
    architecture = chosen_architecture(job.settings, request.architecture)
    layout = layout_of(job.settings, request.npus, bool(trainer.ranks))
    engine = engine_for(trainer.module, job.settings, request.engine, layout.rollout_npus > 0)
    folder = _new_folder(request.output, name)
    with progress.step(_("making a small {architecture} and its data").format(architecture=architecture.name)):
        setup, notes = prepare(job, architecture, layout, folder, request, engine)
    changes = scale(job.settings, setup, request.without)[0]
    # A key that interpolates a changed key has changed with it.
    changes = [change for change in changes if not _follows(change, changes, job)]
    options = list(trainer.options)
    if entry.moved:
        options = [f"--config-path={entry.folder}", f"--config-name={entry.name}"]
        notes.append(_("the folder {moved} does not exist: using this tree's configuration").format(moved=entry.moved))
    options.append(f"hydra.run.dir={written(folder) / 'hydra'}")
    return ScaledJob(
        job=job,
        folder=folder,
        architecture=architecture.name,
        layout=layout,
        changes=tuple(changes),
        command=tuple(command_of(trainer, changes, layout.npus, options)),
        notes=tuple(notes),
    )


def rehearse(scaled: ScaledJob, request: Request, told: Callable[[int, Mapping[str, float]], None]) -> Rehearsed:
    """Run a scaled job, and judge how it ended. `told` is a callback that receives each step and its metrics."""
    npus, tree = scaled.layout.all_npus, scaled.job.tree
    prepare_device(npus)
    compiler = kernels.prepare() if request.kernels else None
    reads = [request.output / "models", scaled.folder / "data", scaled.folder / "reward.py"]
    started = time.monotonic()
    done = train(
        scaled.command,
        scaled.job.trainer,
        tree,
        scaled.folder,
        npus,
        request.seconds,
        told,
        [*reads, *([compiler.folder] if compiler else [])],
        request.unconfined,
        more=kernels.variables(compiler, written(scaled.folder)) if compiler else {},
    )
    ended = Rehearsed(scaled, done, judge(done, request.steps, tree), time.monotonic() - started)
    if compiler is None or request.kernels is None:
        return ended
    folders = (written(scaled.folder), scaled.folder)
    said = kernels.judge(compiler, request.kernels, tree, folders, features(ended), request.unconfined)
    return replace(ended, kernels=said)


def _follows(change: Change, changes: Sequence[Change], job: Job) -> bool:
    """Return whether a changed key need not be set, because the key or a section around it interpolates another key
    that is set to the same value.

    Setting a key in an interpolated section would even be incorrect: the section would be replaced by this one key.
    """
    parts = change.key.split(".")
    for length in range(len(parts), 0, -1):
        text = job.interpolations.get(".".join(parts[:length]), "")
        below = "".join(f".{part}" for part in parts[length:])
        referred = {name + below for name in re.findall(r"[A-Za-z_][\w.]+", text)}
        if any(other.key in referred and other.after == change.after for other in changes):
            return True
    return False


def _new_folder(output: Path, name: str) -> Path:
    folder = (output / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}").resolve()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise CommandError(
            subject="--output",
            expected=_("a writable folder"),
            found=f"{output}: {error}",
            fix=_("specify another folder"),
        ) from error
    return folder


def by_rule(scaled: ScaledJob) -> Iterable[tuple[str, str, list[Change]]]:
    """Yield each rule that changed something, with its name, its reason, and its changes."""
    for rule in RULES:
        changes = [change for change in scaled.changes if change.rule == rule.name]
        if changes:
            yield rule.name, rule.reason, changes


def scaled_content(scaled: ScaledJob) -> dict[str, object]:
    """Return a scaled job as a JSON-serializable object."""
    layout, trainer = scaled.layout, scaled.job.trainer
    sizes = ("tensor", "pipeline", "context", "expert", "sequence", "data", "rollout_tensor")
    return {
        "trainer": trainer.module,
        "tree": str(scaled.job.tree),
        "architecture": scaled.architecture,
        "npus": layout.all_npus,
        "layout": {name: getattr(layout, name) for name in sizes},
        "exports": dict(trainer.exports),
        "changes": [asdict(change) for change in scaled.changes],
        "notes": list(scaled.notes),
        "command": list(scaled.command),
    }


def features(done: Rehearsed) -> dict[str, list[str]]:
    """Return each feature's states in all processes of the run."""
    manifests, unread = read_manifests(done.scaled.folder / "manifests")
    # The processes ran untrusted code, which may have written files that are not manifests.
    found = {"not known": [str(error) for error in unread]} if unread else {}
    for manifest in manifests:
        for name, feature in manifest["features"].items():
            states = found.setdefault(name, [])
            if feature["state"] not in states:
                states.append(feature["state"])
    return found


def engine(scaled: ScaledJob) -> str:
    """Return the name of the rehearsal's rollout engine, or an empty string if the job has no rollout."""
    changed = [str(change.after) for change in scaled.changes if change.key == ENGINE]
    return changed[-1] if changed else scaled.job.settings.text(ENGINE)


def curves(run: Run) -> dict[str, list[float]]:
    """Return the reward of each step of a run or, for fine-tuning, the loss of each step."""
    return {
        name: [metrics[name] for step, metrics in sorted(run.steps.items()) if step >= 1 and name in metrics]
        for name in (*REWARD.names, *LOSS.names)
        if any(name in metrics for metrics in run.steps.values())
    }


def _versions() -> dict[str, str]:
    """Return the versions of packages in this environment, which is also the job's environment."""
    installed = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in metadata.distributions()}
    names = {name: name.lower().replace("_", "-") for name in _PACKAGES}
    return {name: installed[key] for name, key in names.items() if key in installed}


def content(script: str, done: Rehearsed, pin: str) -> dict[str, object]:
    """Return the JSON representation of a rehearsal. `pin` is the pin that is closest to the job's version of verl."""
    failure = done.outcome.failure
    return {
        "script": script,
        "pin": pin,
        "engine": engine(done.scaled),
        "curves": curves(done.run),
        "versions": _versions(),
        "verdict": done.outcome.kind.value,
        "steps": done.outcome.steps,
        "seconds": round(done.seconds, 1),
        "failure": failure and {**asdict(failure), "owner": failure.owner.value},
        "simulated": True,
        "not_shown": list(NOT_SHOWN),
        "features": features(done),
        "exports_left_out": list(done.run.left_out),
        "kernels": report.content(done.kernels) if done.kernels is not None else None,
        "folder": str(done.scaled.folder),
        **scaled_content(done.scaled),
    }


def error_content(script: str, error: Exception) -> dict[str, object]:
    """Return the JSON representation of a script that could not be rehearsed, with the reason."""
    return {"script": script, "verdict": _("not rehearsed"), "steps": 0, "seconds": 0.0, "error": str(error)}


def page(results: Sequence[Mapping[str, object]]) -> str:
    """Return a Markdown page with a table of the scripts, their verdicts, and their failures."""
    lines = [
        "# Rehearsals on virtual NPUs (SIMULATED)",
        "",
        f"None of them shows: {', '.join(NOT_SHOWN)}.",
        "",
    ]
    if any(each.get("kernels") for each in results):
        lines += [f"A kernel that compiles does not show: {'; '.join(NOT_SHOWN_OF_KERNELS)}.", ""]
    lines += [
        "| script | verdict | steps | NPUs | seconds | first error | kernels |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        lines.append(
            f"| {_cell(each['script'])} | {each['verdict']} | {each['steps']} | {each.get('npus', '')} "
            f"| {each['seconds']} | {_cell(_error(each))} | {_cell(_kernels(each))} |"
        )
    return "\n".join([*lines, ""])


def _error(each: Mapping[str, object]) -> str:
    failure = each.get("failure")
    if isinstance(failure, Mapping):
        return f"{failure['owner']}, {failure['process']}, {failure['phase']}: {failure['error']}"
    return str(each.get("error", ""))


def _kernels(each: Mapping[str, object]) -> str:
    """Return the names of the failing kernels and the number of kernels that compile as text, or an empty string if no
    kernels were judged."""
    found = each.get("kernels")
    if not isinstance(found, Mapping):
        return ""
    failing = [f"{one['kernel']} {one['verdict']}" for one in found["kernels"] if one["verdict"] != "compiles"]
    return "; ".join([*dict.fromkeys(failing), f"{found['counts']['compiles']} compile"])


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")[:300]
