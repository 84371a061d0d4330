"""What an evaluation leaves in its folder: its settings, and each answer from the moment that it came."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

SETTINGS = "settings.json"
ANSWERS = "answers.jsonl"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer, a line of the file."""

    row: int
    round: int
    """From 0."""
    data_source: str
    score: float
    more: Mapping[str, object]
    """What else the reward function returned."""
    finish_reason: str
    tokens: int | None
    answer: str


@contextmanager
def opened(folder: Path, wanted: Mapping[str, object]) -> Iterator[TextIO]:
    """Open the file of answers for more of them, and keep the folder from a second evaluation meanwhile.

    A line that a killed evaluation left half written is cut off.

    Raises:
        EvaluationError: the folder is another evaluation's, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Read and written: it is cut to its last whole line.
        with (folder / ANSWERS).open("a+", encoding="utf-8") as stream:
            _lock(folder, stream)
            _agree(folder, wanted)
            _cut(stream)
            yield stream
    except OSError as error:
        raise EvaluationError(
            subject=str(folder),
            expected=_("a folder that can be written"),
            found=str(error),
            fix=_("give another --output"),
        ) from error


def settings(folder: Path) -> dict[str, Any]:
    """Return what an evaluation was made with.

    Raises:
        EvaluationError: the folder has none.
    """
    path = folder / SETTINGS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        found = _("no such file") if isinstance(error, FileNotFoundError) else str(error)
        raise _no_evaluation(path, found) from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise _no_evaluation(path, _("another layout"))
    return content


def answers(folder: Path) -> dict[tuple[int, int], Entry]:
    """Return the answers that are there, by round and row; a last line that is not whole is left out.

    Raises:
        EvaluationError: the file cannot be read.
    """
    path = folder / ANSWERS
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [Entry(**json.loads(line)) for line in lines if line.endswith("\n")]
    except (OSError, ValueError, TypeError) as error:
        raise EvaluationError(
            subject=str(path),
            expected=_("a line of JSON for each answer"),
            found=str(error),
            fix=_("give another --output, or remove the line that is damaged"),
        ) from error
    return {(each.round, each.row): each for each in found}


def write(stream: TextIO, entry: Entry) -> None:
    """Write one answer; it is the system's from then on, should this process be killed."""
    stream.write(json.dumps(asdict(entry), ensure_ascii=True) + "\n")
    stream.flush()


def _lock(folder: Path, stream: TextIO) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EvaluationError(
            subject=str(folder),
            expected=_("a folder that no other evaluation writes to"),
            found=_("one that is running"),
            fix=_("wait for it, or give another --output"),
        ) from error


def _agree(folder: Path, wanted: Mapping[str, object]) -> None:
    wanted = {"version": _VERSION, **wanted}
    path = folder / SETTINGS
    if not path.exists():
        if (folder / ANSWERS).stat().st_size:
            raise _no_evaluation(path, _("no such file, and answers beside it"))
        # Renamed into place: half a file would refuse every evaluation after this one.
        part = path.with_suffix(".part")
        part.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        os.replace(part, path)
        return
    made = settings(folder)
    differing = [key for key in {**made, **wanted} if made.get(key) != json.loads(json.dumps(wanted.get(key)))]
    if differing:
        key = differing[0]
        more = _(", and {differing} differ too").format(differing=_(", ").join(differing[1:])) if differing[1:] else ""
        raise EvaluationError(
            subject=str(folder),
            expected=_("an evaluation with {key} {dumps}").format(key=key, dumps=json.dumps(wanted.get(key))),
            found=_("one with {dumps}{more}").format(dumps=json.dumps(made.get(key)), more=more),
            fix=_("give another --output, or the settings that it was begun with"),
        )


def _cut(stream: TextIO) -> None:
    stream.seek(0)
    content = stream.read()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        stream.truncate(len(whole.encode()))
    stream.seek(0, os.SEEK_END)


def _no_evaluation(path: Path, found: str) -> EvaluationError:
    return EvaluationError(
        subject=str(path),
        expected=_("the settings of an evaluation that verl-npu made"),
        found=found,
        fix=_("give the --output of an evaluation, or an empty folder"),
    )
