"""What a rehearsal needs before it starts: the small model, its checkpoint, data, a reward, and the rollout engine."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import environment
from ..errors import RehearsalError
from . import architecture as architectures
from . import questions, reward, tiny_model
from .architecture import ARCHITECTURES, Architecture, architecture_of
from .engine import chosen_engine
from .layout import Layout
from .rules import Scene
from .settings import Settings
from .trainer import Trainer
from .training import convert, prepare_device

__all__ = ["Request", "chosen_architecture", "prepare"]

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


def prepare(
    trainer: Trainer,
    tree: Path,
    settings: Settings,
    architecture: Architecture,
    layout: Layout,
    folder: Path,
    request: Request,
) -> tuple[Scene, list[str]]:
    """Make model, checkpoint if one is wanted, data and reward; return them, and what is to be said of them."""
    layers = max(architecture.layers, architecture.layers * layout.pipeline if layout.pipeline > 1 else 0)
    model = _model(architecture, layers, request.output / "models")
    train_file, test_file = questions.generate(folder / "data", _data_source(settings), architecture.sees)
    engine = chosen_engine(settings, request.engine, alone=layout.rollout_npus > 0)
    notes = [engine.note] if engine.note else []
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
        prompt=PROMPT + (_PICTURE_TOKENS if architecture.sees else 0),
        response=RESPONSE,
        engine=engine.name,
        awake=engine.awake,
        torchrun=bool(trainer.ranks),
    )
    return scene, notes


def chosen_architecture(settings: Settings, asked: str) -> Architecture:
    """Return the architecture that the user names, or the model's path. Raises RehearsalError if neither does."""
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
    # What makes it may have changed since one was made.
    makers = "".join(map(inspect.getsource, (tiny_model, architectures))).encode()
    name = f"{architecture.name}-{layers}-{transformers}-{hashlib.sha256(makers).hexdigest()[:8]}"
    target = (folder / name).resolve()
    if (target / "model.safetensors.index.json").is_file():
        return target
    made = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run(
        [sys.executable, "-m", tiny_model.__name__, architecture.name, str(layers), str(made)],
        # As the run itself: on virtual NPUs torchvision can be imported whatever it was compiled for.
        env=os.environ | {environment.VIRTUAL.name: "1"},
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
