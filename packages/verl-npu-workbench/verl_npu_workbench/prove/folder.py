"""The folder of a proof: the request, each stage's result, and the records that stages write while they run.

Files are replaced atomically. Finished work therefore survives even if the command is killed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from .. import places
from ..sandbox.answers import Answer
from .content import read, to_json
from .record import Recorded
from .record import read as read_record
from .result import StageResult
from .table import STAGES

_ASKED = "asked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of a proof, its date, and the environment that it was started in."""

    made: Annotated[str, 40]
    """The date of the proof, such as 2026-01-31."""
    minutes: float
    npus: int
    """The number of NPUs that the proof may use. It is 0 for all."""
    simulated: str
    """The number of requested virtual NPUs, or an empty string if no virtual NPUs are requested."""
    versions: Mapping[str, str]
    """The packages' versions, by name."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one proof."""

    path: Path

    def begin(self, asked: Asked) -> None:
        """Create the folder if it does not exist, and write the request into it. Raises CommandError if the folder
        already contains a proof."""
        if (self.path / _ASKED).exists():
            raise CommandError(
                subject=f"--output {self.path}",
                expected=_("a folder without a proof"),
                found=_("an earlier proof"),
                fix=_("continue the earlier proof with --resume, or specify another folder"),
            )
        with writing(self.path):
            (self.path / "stages").mkdir(parents=True, exist_ok=True)
        self.write(_ASKED, to_json(asked))

    def asked(self) -> Asked:
        """Return the request that the proof was started with. Raises CommandError if the folder does not contain a
        proof."""
        path = self.path / _ASKED
        if not path.is_file():
            raise CommandError(
                subject=f"--output {self.path}",
                expected=_("a folder with a proof to continue"),
                found=_("no file {file}").format(file=_ASKED),
                fix=_("specify the folder that contains the proof, or remove --resume"),
            )
        asked: Asked = read(Asked, self._content(path), str(path))
        return asked

    def record(self, stage: str) -> Path:
        """Return the path of the file that a stage writes while it runs."""
        return self.path / "stages" / f"{stage}.jsonl"

    def log(self, stage: str) -> Path:
        """Return the path of the file that receives the output of a stage's process."""
        return self.path / "stages" / f"{stage}.log"

    def scratch(self, stage: str) -> Path:
        """Create a folder for a stage's temporary files, and return its path."""
        made = self.path / "stages" / stage
        with writing(made):
            made.mkdir(parents=True, exist_ok=True)
        return made

    def recorded(self, stage: str) -> Recorded:
        """Return the record that a stage has written."""
        return read_record(self.record(stage))

    def finish(self, result: StageResult) -> None:
        """Save a stage's result."""
        self.write(f"stages/{result.name}.json", to_json(result))

    def forget(self, stage: str) -> None:
        """Delete a stage's record and result, so that all of its checks run again."""
        for path in (self.record(stage), self.path / "stages" / f"{stage}.json"):
            path.unlink(missing_ok=True)

    def results(self) -> dict[str, StageResult]:
        """Return the results of the finished stages, in order."""
        found: dict[str, StageResult] = {}
        for stage in STAGES:
            path = self.path / "stages" / f"{stage.name}.json"
            if path.is_file():
                found[stage.name] = read(StageResult, self._content(path), str(path))
        return found

    def write(self, name: str, content: object) -> None:
        """Write a JSON file atomically. Raises CommandError if the write fails."""
        put(self.path / name, json.dumps(content, indent=1).encode())

    def _content(self, path: Path) -> object:
        answer = Answer.read(path.read_bytes())
        if answer.wrong:
            raise CommandError(
                subject=str(path),
                expected=_("JSON that was written by `verl-npu prove`"),
                found=answer.wrong,
                fix=_("the folder is damaged; start a new proof in another folder"),
            )
        return dict(answer.content)


def put(path: Path, data: bytes) -> None:
    """Write `data` to a file atomically. Raises CommandError if the write fails."""
    with writing(path):
        places.put(path, data)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager that converts an OSError in the `with` block into a CommandError."""
    try:
        yield
    except OSError as error:
        raise CommandError(
            subject=str(path),
            expected=_("free disk space, and permission to write the file"),
            found=error.strerror or str(error),
            fix=_("free some disk space, and run the command again with --resume, which keeps finished stages"),
        ) from error
