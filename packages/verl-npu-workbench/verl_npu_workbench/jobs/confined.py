"""The sandbox in which a job's programs run: the packages that they import, the source tree, and an empty home
folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_npu import environment

from ..sandbox import Sandbox, device_cache, importable, is_private
from ..secrecy.variables import words_of
from .capture import fresh_home
from .trainer import Trainer

_PROCESSORS = Path("/sys/devices/system")
"""The folder in which programs look for the machine's processors. vLLM's CPU build exits if it finds no processor
there."""


def sandbox_of(
    trainer: Trainer, tree: Path, reads: Sequence[Path] = (), writes: Mapping[Path, Path] | None = None
) -> Sandbox:
    """Return the sandbox for a program that imports code from the tree.

    Args:
        reads: files and folders of verl-npu that the program reads.
        writes: a mapping from paths in the sandbox to the folders that the program writes to.
    """
    seen = (*(path.resolve() for path in reads), *importable(tree), *_sources(trainer, tree))
    machine = [path for path in (device_cache(), _PROCESSORS) if path.is_dir()]
    return Sandbox(
        read_only=(*seen, *machine),
        tree=tree,
        writable=writes or {},
        folders=(fresh_home(),),
        files={tree / "recipe": trainer.recipes} if trainer.recipes else {},
    )


def named(trainer: Trainer) -> set[str]:
    """Return the environment variables that may be read by a trainer's script, by the trainer's settings, or by the
    files that either of them names."""
    return words_of(trainer.overrides, trainer.folder) | set(trainer.inherited)


def script_paths(trainer: Trainer) -> list[str]:
    """Return the folders that a script adds to PYTHONPATH and that contain packages.

    Private folders, such as the user's home folder, are left out, because the script may be somebody else's.
    """
    entries = [entry for entry in trainer.exports.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [entry for entry in entries if _has_packages(Path(entry))]


def _has_packages(folder: Path) -> bool:
    return folder.is_dir() and not is_private(folder) and any(folder.glob("*/__init__.py"))


def _sources(trainer: Trainer, tree: Path) -> list[Path]:
    own = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), environment.MINDSPEED.text(), *script_paths(trainer)]
    # The sandbox has the tree's parts already, so that programs can write to its root.
    return [path for path in map(Path, filter(None, own)) if path.is_dir() and path != tree]
