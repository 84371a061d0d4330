"""The trainer that a command is asked about: a launch script's, or that of a command after `--`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import ScriptError
from ..rehearse.capture import capture, tree_of
from ..rehearse.trainer import Trainer, of_capture, of_words

__all__ = ["asked_trainer"]


def asked_trainer(
    command: str, script: Path | None, arguments: Sequence[str], verl: Path | None
) -> tuple[Trainer, Path, str]:
    """Return the trainer, the source tree to start it in, and a name for it.

    `command` is what the user called, for the error if there is neither a script nor a command.

    Raises:
        ScriptError: there is no trainer, or more than one.
    """
    words = list(arguments)
    # click takes the first word after -- for the script, if there is none.
    if script is not None and words and not script.exists() and _is_program(str(script)):
        script, words = None, [str(script), *words]
    if script is None:
        if not words:
            raise ScriptError(
                subject=f"verl-npu {command}",
                expected="a launch script, or a trainer's command after --",
                found="neither",
                fix=f"see verl-npu {command} --help",
            )
        tree = (verl or Path.cwd()).resolve()
        return of_words(words, tree, {}), tree, "command"
    tree = (verl or tree_of(script)).resolve() if script.is_file() else Path.cwd()
    return of_capture(capture(script, tree, words, os.environ)), tree, script.stem


def _is_program(word: str) -> bool:
    return Path(word).name.startswith(("python", "torchrun", "ray")) or "=" in word
