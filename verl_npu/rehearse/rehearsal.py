"""One rehearsal from script to verdict."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import RehearsalError
from . import questions, reward, tiny_model
from .architecture import ARCHITECTURES, Architecture, architecture_of
from .composition import Composition, compose
from .layout import Layout, layout_of
from .rules import Scene, scale
from .settings import Change, Settings
from .trainer import Trainer
from .training import Run, command_of, convert, prepare_device, train
from .verdict import Verdict, judge

__all__ = ["Plan", "Rehearsed", "Request", "plan", "rehearse"]

ENGINES = ("auto", "vllm", "virtual")
PROMPT, RESPONSE = 64, 16
_PICTURE_TOKENS = 64
_MODELS = (
    "actor_rollout_ref.model.path",
    "model.partial_pretrain",
    "model.path",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for."""

    output: Path
    steps: int = 2
    npus: int | None = None
    engine: str = "auto"
    architecture: str = ""
    seconds: float = 900.0
    without: tuple[str, ...] = ()
    """Rules that are left out."""


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
    architecture = _architecture(settings, request.architecture)
    layout = layout_of(settings, request.npus, bool(trainer.ranks))
    folder = _new_folder(request.output, name)
    prompt = PROMPT + (_PICTURE_TOKENS if architecture.sees else 0)
    layers = max(architecture.layers, architecture.layers * layout.pipeline if layout.pipeline > 1 else 0)
    model = _model(architecture, layers, request.output / "models")
    train_file, test_file = questions.generate(folder / "data", _data_source(settings), architecture.sees)
    engine, note = _engine(settings, request.engine)
    notes = [note] if note else []
    checkpoint = None
    if any(settings.truth(key) for key in settings.ending("use_dist_checkpointing")):
        prepare_device(layout.all_npus)
        failure = convert(trainer, tree, model, folder, layout)
        checkpoint = None if failure else folder / "mcore"
        if failure:
            notes.append(f"the small model was not converted to a distributed checkpoint: {failure}")
    scene = Scene(
        folder=folder,
        model=model,
        train=train_file,
        test=test_file,
        checkpoint=checkpoint,
        reward=_reward(folder),
        layout=layout,
        steps=request.steps,
        prompt=prompt,
        response=RESPONSE,
        engine=engine,
        torchrun=bool(trainer.ranks),
    )
    changes, scaled = scale(settings, scene, request.without)
    # What follows another key by interpolation has followed it.
    changes = [change for change in changes if not _follows(change, changes, composition)]
    options = [*_options(trainer, composition), f"hydra.run.dir={folder / 'hydra'}"]
    command = command_of(trainer, changes, layout, options)
    if composition.entry.moved:
        notes.append(f"there is no folder {composition.entry.moved}: the configuration is this tree's own")
    return Plan(
        trainer,
        tree,
        folder,
        composition,
        architecture,
        model,
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
    """Whether a key is an interpolation of one that is set to the same value."""
    text = composition.raw.get(change.key, "")
    referred = set(re.findall(r"[A-Za-z_][\w.]+", text)) if text else set()
    return any(other.key in referred and other.after == change.after for other in changes)


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


def _architecture(settings: Settings, asked: str) -> Architecture:
    if asked:
        for each in ARCHITECTURES:
            if each.name == asked:
                return each
        raise RehearsalError(
            subject="--architecture",
            expected="one of " + ", ".join(each.name for each in ARCHITECTURES),
            found=repr(asked),
            fix="give the model type that the model's config.json has",
        )
    path = next((settings.text(key) for key in _MODELS if settings.text(key)), "")
    return architecture_of(path)


def _data_source(settings: Settings) -> str:
    path = settings.text("data.train_files").lower()
    for part, source in (("geo3k", "hiyouga/geometry3k"), ("dapo", "math_dapo"), ("math", "lighteval/MATH")):
        if part in path:
            return source
    return "openai/gsm8k"


def _model(architecture: Architecture, layers: int, folder: Path) -> Path:
    """Make the small model, once for each architecture, number of layers and transformers."""
    try:
        transformers = version("transformers")
    except PackageNotFoundError as error:
        raise RehearsalError(
            subject="this environment",
            expected="the packages that your verl needs",
            found="no transformers",
            fix="run verl-npu with the Python that your verl is installed for",
        ) from error
    target = (folder / f"{architecture.name}-{layers}-{transformers}").resolve()
    if (target / "model.safetensors.index.json").is_file():
        return target
    made = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run(
        [sys.executable, "-m", tiny_model.__name__, architecture.name, str(layers), str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RehearsalError(
            subject=f"a small model of the architecture {architecture.name}",
            expected=f"transformers {transformers} to make one",
            found=(done.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix="install the transformers that your verl names, or rehearse with --architecture",
        )
    # If another process was faster, its model is the same.
    with contextlib.suppress(OSError):
        made.rename(target)
    return target


def _reward(folder: Path) -> Path:
    path = folder / "reward.py"
    path.write_text(Path(reward.__file__).read_text())
    return path


def _engine(settings: Settings, asked: str) -> tuple[str, str]:
    """Return the engine that takes the place of the script's, and what is to be said of it."""
    own = settings.text("actor_rollout_ref.rollout.name")
    if not own or own in ("hf", "virtual", "naive"):
        return "", ""
    if asked == "vllm" or (asked == "auto" and own == "vllm" and importlib.util.find_spec("vllm") is not None):
        return (
            "" if own == "vllm" else "vllm"
        ), f"the rollout engine is vLLM's, as installed here (the script's is {own})"
    return "virtual", f"the rollout engine is transformers' generate; the script's is {own}"
