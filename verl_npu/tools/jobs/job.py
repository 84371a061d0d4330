"""A job: a trainer with its whole configuration, as Hydra composes it from the revision's files and the overrides."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # What another program writes as JSON.

from ...errors import CompositionError
from . import composing
from .settings import Settings
from .trainer import Trainer

_SECONDS = 120.0
_CONFIGURATIONS = Path("verl", "trainer", "config")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a trainer's configuration comes from."""

    source: Path
    """The file of the trainer."""
    folder: Path
    name: str
    moved: str = ""
    """The folder that the script names, if it is not here and this tree's own is taken instead."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer with its settings."""

    trainer: Trainer
    tree: Path
    """The source tree that it is started in."""
    entry: Entry
    settings: Settings
    """With interpolations followed."""
    interpolations: Mapping[str, str]
    """Those settings that refer to others, as they are written."""
    config: Mapping[str, object]
    """All of it section by section, with interpolations as they are written: OmegaConf makes a configuration of it."""


def entry_of(trainer: Trainer, tree: Path) -> Entry:
    """Find the configuration that a trainer's `@hydra.main` and its command line name.

    Raises:
        CompositionError: the trainer is not in the tree nor installed, or has no configuration of Hydra's.
    """
    source = _source(trainer, tree)
    path, name = _decorated(source)
    given = trainer.option("--config-path") or trainer.option("-cp") or trainer.option("--config-dir")
    name = trainer.option("--config-name") or trainer.option("-cn") or name
    folder = (source.parent / (given or path or ".")).resolve()
    if folder.is_dir():
        return Entry(source, folder, name.removesuffix(".yaml"))
    own = tree / _CONFIGURATIONS
    if given and (own / f"{name.removesuffix('.yaml')}.yaml").is_file():
        return Entry(source, own, name.removesuffix(".yaml"), moved=given)
    raise CompositionError(
        subject=f"the configuration of {trainer.module}",
        expected="a folder with its YAML files",
        found=f"no folder {folder}",
        fix="check --config-path, which is relative to the folder of the trainer's own file",
    )


def compose(trainer: Trainer, tree: Path) -> Job:
    """Compose the settings that a trainer would get.

    Raises:
        CompositionError: Hydra refuses an override, or cannot be asked.
    """
    entry = entry_of(trainer, tree)
    answer = _answer(trainer, tree, entry)
    if "error" in answer:
        raise CompositionError(
            subject=f"the overrides of {trainer.module}",
            expected="overrides that Hydra takes",
            found=" ".join(answer["error"].split())[:400],
            fix="compare the key with the revision's own configuration: a key that is not there takes a + in front, "
            "and one that was moved has another place now",
        )
    return Job(
        trainer=trainer,
        tree=tree,
        entry=entry,
        settings=Settings(answer["values"]),
        interpolations=answer["interpolations"],
        config=answer["config"],
    )


def _answer(trainer: Trainer, tree: Path, entry: Entry) -> Any:
    """What `composing` writes, as a program of its own."""
    request = {"tree": str(tree), "folder": str(entry.folder), "name": entry.name, "overrides": trainer.overrides}
    try:
        done = subprocess.run(
            [sys.executable, composing.__file__],
            input=json.dumps(request),
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompositionError(
            subject=f"the configuration of {trainer.module}",
            expected="Hydra to compose it in seconds",
            found=f"nothing after {_SECONDS:.0f} s",
            fix="look for a YAML file whose anchors grow without end",
        ) from error
    if done.returncode != 0:
        raise CompositionError(
            subject=f"the configuration of {trainer.module}",
            expected="Hydra to compose it",
            found=(done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:300],
            fix=f"install the packages of your verl into {sys.prefix}, hydra-core among them",
        )
    return json.loads(done.stdout)


def _source(trainer: Trainer, tree: Path) -> Path:
    """The trainer's file: of the tree, or installed."""
    module = trainer.module
    if module.endswith(".py") or "/" in module:
        found = trainer.folder / module
        if found.is_file():
            return found
    else:
        below = tree.joinpath(*module.split("."))
        for path in (below.with_suffix(".py"), below / "__main__.py"):
            if path.is_file():
                return path
        top = module.partition(".")[0]
        spec = importlib.util.find_spec(top) if top else None
        for place in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(place).joinpath(*module.split(".")[1:]).with_suffix(".py")
            if path.is_file():
                return path
    raise CompositionError(
        subject=f"the trainer {module}",
        expected=f"it in {tree}, or installed",
        found="neither",
        fix="give the source tree that the script belongs to: --verl PATH",
    )


def _decorated(source: Path) -> tuple[str, str]:
    """The config_path and config_name of `@hydra.main`, read from the source."""
    try:
        parsed = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CompositionError(
            subject=f"the trainer {source}",
            expected="a Python file",
            found=f"{error} as Python reads it",
            fix="start a trainer with python3 or torchrun, and shell scripts with bash",
        ) from error
    for node in ast.walk(parsed):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "hydra.main":
                given = {word.arg: word.value for word in decorator.keywords if word.arg}
                found = [given.get("config_path"), given.get("config_name")]
                path, name = (str(n.value) if isinstance(n, ast.Constant) and n.value else "" for n in found)
                return path, name
    raise CompositionError(
        subject=f"the trainer {source}",
        expected="a function with @hydra.main",
        found="none",
        fix="only trainers that are configured with Hydra can be rehearsed; all of verl's are",
    )
