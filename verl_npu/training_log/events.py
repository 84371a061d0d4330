"""TensorBoard's event files, read by the package tensorboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import TrainingLogError
from .line import Line

__all__ = ["files", "is_event_file", "lines"]

_MARK = "tfevents"


def is_event_file(path: Path) -> bool:
    """Whether a file is one of TensorBoard's, by its name."""
    return _MARK in path.name


def files(path: Path) -> list[Path]:
    """Return the event files of one training: `path` itself, or those in the folder, the oldest first.

    Raises:
        TrainingLogError: there are none, or they are of several trainings.
    """
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob(f"*{_MARK}*") if file.is_file())
    folders = sorted({str(file.parent) for file in found})
    if len(folders) != 1:
        raise TrainingLogError(
            subject=str(path),
            expected="the folder of one training's TensorBoard files (events.out.tfevents.…)",
            found=f"those of {len(folders)}: {', '.join(folders)}" if folders else "none",
            fix="give the folder that directly holds them",
        )
    # Their names begin with the time at which they were opened.
    return sorted(found, key=lambda file: file.name)


def lines(files: Sequence[Path]) -> Iterator[Line]:
    """Yield what each event says of a step, in the order in which they were written.

    Raises:
        TrainingLogError: tensorboard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise TrainingLogError(
            subject=str(files[0]),
            expected="the package tensorboard, which reads TensorBoard's files",
            found=f"none that can be imported: {error}",
            fix="pip install tensorboard, or give the job's console log",
        ) from error
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            found = {
                value.tag: tensor_util.make_ndarray(value.tensor)
                for value in event.summary.value
                if value.metadata.plugin_data.plugin_name == "scalars"
            }
            metrics = {tag: float(array) for tag, array in found.items() if array.size == 1}
            if metrics:
                yield Line(event.step, metrics)
