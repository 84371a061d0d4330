"""One rehearsal from script to verdict."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RehearsalError
from .architecture import Architecture
from .composition import Composition, compose
from .layout import Layout, layout_of
from .preparation import Request, chosen_architecture, prepare
from .rules import scale
from .sandbox import why_none
from .settings import Change, Settings
from .trainer import Trainer
from .training import Run, command_of, prepare_device, train
from .verdict import Verdict, judge

__all__ = ["Plan", "Rehearsed", "plan", "rehearse"]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before a rehearsal starts."""

    trainer: Trainer
    tree: Path
    folder: Path
    composition: Composition
    architecture: Architecture
    model: Path
    layout: Layout
    changes: tuple[Change, ...]
    settings: Settings
    """As they will be."""
    command: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A rehearsal that has ended."""

    plan: Plan
    run: Run
    verdict: Verdict
    seconds: float


def plan(trainer: Trainer, tree: Path, name: str, request: Request) -> Plan:
    """Compose the settings, make model and data, and decide what is scaled.

    Raises:
        CompositionError: Hydra does not take the script's settings.
        RehearsalError: the model's architecture is not known here, or the NPUs do not suffice.
    """
    composition = compose(trainer, tree)
    settings = Settings(composition.values)
    architecture = chosen_architecture(settings, request.architecture)
    layout = layout_of(settings, request.npus, bool(trainer.ranks))
    folder = _new_folder(request.output, name)
    scene, notes = prepare(trainer, tree, settings, architecture, layout, folder, request)
    changes, scaled = scale(settings, scene, request.without)
    # What follows another key by interpolation has followed it.
    changes = [change for change in changes if not _follows(change, changes, composition)]
    options = [*_options(trainer, composition), f"hydra.run.dir={folder / 'hydra'}"]
    command = command_of(trainer, changes, layout, options)
    if composition.entry.moved:
        notes.append(f"there is no folder {composition.entry.moved}: the configuration is this tree's own")
    if reason := why_none():
        notes.append(f"the trainer runs as it would by hand: there can be no sandbox here ({reason})")
    return Plan(
        trainer,
        tree,
        folder,
        composition,
        architecture,
        scene.model,
        layout,
        tuple(changes),
        scaled,
        tuple(command),
        tuple(notes),
    )


def rehearse(made: Plan, request: Request, progress: Callable[[int, Mapping[str, float]], None]) -> Rehearsed:
    """Run what was planned, and judge how it ended."""
    prepare_device(made.layout.all_npus)
    started = time.monotonic()
    models = request.output / "models"
    done = train(
        made.command,
        made.trainer,
        made.tree,
        made.folder,
        made.layout,
        request.seconds,
        progress,
        [models],
    )
    return Rehearsed(made, done, judge(done, request.steps, made.tree), time.monotonic() - started)


def _follows(change: Change, changes: Sequence[Change], composition: Composition) -> bool:
    """Whether a key is an interpolation of one that is set to the same value, or lies in a section that is one.

    Setting a key of such a section would give the section up: it would have this key and no other.
    """
    parts = change.key.split(".")
    for length in range(len(parts), 0, -1):
        text = composition.raw.get(".".join(parts[:length]), "")
        below = "".join(f".{part}" for part in parts[length:])
        referred = {name + below for name in re.findall(r"[A-Za-z_][\w.]+", text)}
        if any(other.key in referred and other.after == change.after for other in changes):
            return True
    return False


def _options(trainer: Trainer, composition: Composition) -> list[str]:
    if not composition.entry.moved:
        return list(trainer.options)
    return [f"--config-path={composition.entry.folder}", f"--config-name={composition.entry.name}"]


def _new_folder(output: Path, name: str) -> Path:
    folder = (output / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}").resolve()
    try:
        (folder / "manifests").mkdir(parents=True)
    except OSError as error:
        raise RehearsalError(
            subject="--output", expected="a folder that can be written", found=f"{output}: {error}", fix="give another"
        ) from error
    return folder
