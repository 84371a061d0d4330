"""The folder of a proof: what was asked, what each stage came to, and what it wrote down meanwhile.

Files are put in their places whole, so that whatever ends the command leaves what was finished.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import ProofError
from verl_npu.language import gettext as _

from .. import places
from ..sandbox.answers import Answer
from .record import Recorded, read
from .result import Reader, StageResult, stage_of
from .table import STAGES

_ASKED = "asked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a proof is of."""

    made: str
    """The day, as 2026-01-31."""
    minutes: float
    npus: int
    """How many NPUs it may use; 0 for all."""
    simulated: str
    """How many virtual NPUs were asked for; empty if none."""
    versions: Mapping[str, str]
    """Of the packages, by name."""

    def as_json(self) -> dict[str, object]:
        return {
            "made": self.made,
            "minutes": self.minutes,
            "npus": self.npus,
            "simulated": self.simulated,
            "versions": dict(self.versions),
        }


def asked_of(said: Reader) -> Asked:
    """Return what a proof is of as it was written."""
    return Asked(
        made=said.text("made", 40),
        minutes=said.number("minutes"),
        npus=int(said.number("npus")),
        simulated=said.text("simulated"),
        versions=said.texts("versions"),
    )


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one proof."""

    path: Path

    def begin(self, asked: Asked) -> None:
        """Take what is asked down, in a folder that has no proof yet. Raises ProofError."""
        if (self.path / _ASKED).exists():
            raise ProofError(
                subject=f"--output {self.path}",
                expected=_("a folder without a proof"),
                found=_("one"),
                fix=_("go on with it by --resume, or give another folder"),
            )
        with told(self.path):
            (self.path / "stages").mkdir(parents=True, exist_ok=True)
        self.write(_ASKED, asked.as_json())

    def asked(self) -> Asked:
        """Return what the proof is of. Raises ProofError if there is none."""
        path = self.path / _ASKED
        if not path.is_file():
            raise ProofError(
                subject=f"--output {self.path}",
                expected=_("a folder with a proof to go on with"),
                found=_("no {file}").format(file=_ASKED),
                fix=_("give the folder of the proof, or leave --resume out"),
            )
        return asked_of(Reader(self._content(path), str(path)))

    def record(self, stage: str) -> Path:
        """Return the file that a stage writes to while it runs."""
        return self.path / "stages" / f"{stage}.jsonl"

    def log(self, stage: str) -> Path:
        """Return the file of what a stage's process prints."""
        return self.path / "stages" / f"{stage}.log"

    def scratch(self, stage: str) -> Path:
        """Return a folder for what a stage needs on the way."""
        made = self.path / "stages" / stage
        with told(made):
            made.mkdir(parents=True, exist_ok=True)
        return made

    def recorded(self, stage: str) -> Recorded:
        """Return what a stage has written down."""
        return read(self.record(stage))

    def finish(self, result: StageResult) -> None:
        """Keep what a stage came to."""
        self.write(f"stages/{result.name}.json", result.as_json())

    def forget(self, stage: str) -> None:
        """Have a stage made anew, with all of its checks."""
        for path in (self.record(stage), self.path / "stages" / f"{stage}.json"):
            path.unlink(missing_ok=True)

    def results(self) -> dict[str, StageResult]:
        """Return what the stages came to that have ended, in their order."""
        found = {}
        for stage in STAGES:
            path = self.path / "stages" / f"{stage.name}.json"
            if path.is_file():
                found[stage.name] = stage_of(Reader(self._content(path), str(path)))
        return found

    def write(self, name: str, content: object) -> None:
        """Put a file of JSON in its place, whole. Raises ProofError if there is no room."""
        put(self.path / name, json.dumps(content, indent=1).encode())

    def _content(self, path: Path) -> object:
        answer = Answer.read(path.read_bytes())
        if answer.wrong:
            raise ProofError(
                subject=str(path),
                expected=_("JSON, as `verl-npu prove` writes it"),
                found=answer.wrong,
                fix=_("start the proof anew, in another folder"),
            )
        return dict(answer.content)


def put(path: Path, data: bytes) -> None:
    """Put a file in its place, whole: it is there as it was before, or as it is to be. Raises ProofError."""
    with told(path):
        places.put(path, data)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Raise ProofError if the file system refuses."""
    try:
        yield
    except OSError as error:
        raise ProofError(
            subject=str(path),
            expected=_("room for it, and leave to write it"),
            found=error.strerror or str(error),
            fix=_("make room and go on by --resume: what was finished is kept"),
        ) from error
