"""Finds the launch script or the trainer's command in a command's arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from verl_npu.cli import terminal
from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

from ..jobs.capture import capture, tree_of
from ..jobs.trainer import Trainer, trainer_of, trainer_of_command, with_secrets


def say_unconfined(unconfined: bool) -> None:
    """Print a note on stderr if the user asked to run without a sandbox."""
    if unconfined:
        terminal.note(_("unconfined: the code that runs can read your home folder and use your network"))


def asked_trainer(
    command: str, script: Path | None, arguments: Sequence[str], verl: Path | None, unconfined: bool = False
) -> tuple[Trainer, Path, str]:
    """Return the trainer, the source tree to start it in, and a name for its results.

    `command` is the name of the calling command. It is used in the error message if there is neither a script nor a
    trainer's command.

    Raises:
        SourceError: no trainer was found, or more than one.
    """
    words = list(arguments)
    # Without a script, click takes the first word after -- as the script.
    if script is not None and words and is_program(str(script)):
        script, words = None, [str(script), *words]
    if script is None:
        if not words:
            raise SourceError(
                subject=f"verl-npu {command}",
                found=_("neither a launch script nor a trainer's command after -- was given"),
                fix=_("see verl-npu {command} --help").format(command=command),
            )
        tree = (verl or Path.cwd()).resolve()
        return trainer_of_command(words, tree, {}), tree, "command"
    tree = (verl or tree_of(script)).resolve() if script.is_file() else Path.cwd()
    trainer = trainer_of(capture(script, tree, words, os.environ, unconfined))
    return with_secrets(trainer, os.environ) if unconfined else trainer, tree, script.stem


def is_program(word: str) -> bool:
    """Return whether a word can begin a trainer's command line: it is a program such as python or torchrun, or
    NAME=value."""
    return bool(re.fullmatch(r"python[\d.]*|torchrun|uv", Path(word).name) or re.match(r"[A-Za-z_]\w*=", word))
