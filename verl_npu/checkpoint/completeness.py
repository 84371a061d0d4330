"""Whether every file of a checkpoint is there, and whole. It is asked before anything is written."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path

from ..errors import CheckpointError
from .layout import Backend, Layout

__all__ = ["check"]


def check(layout: Layout) -> None:
    """Read all of a checkpoint's files.

    torch.save writes a zip archive, with its table of contents at the end and a checksum of each entry. The metadata
    of torch.distributed.checkpoint, which Megatron saves by, says what is where in which file.

    Raises:
        CheckpointError: a file is missing, cut short or damaged; it names the first such file, and counts the rest.
    """
    faults = _of_megatron(layout.shards[0]) if layout.backend is Backend.MEGATRON else _of_fsdp(layout.shards)
    if faults:
        path, found = faults[0]
        more = f", and {len(faults) - 1} more of {layout.folder.name} are missing or damaged" if faults[1:] else ""
        raise CheckpointError(
            subject=str(path),
            expected="a whole shard of the checkpoint",
            found=f"{found}{more}",
            fix="copy it again from the machine that saved it (each machine saves its own ranks' shards)",
        )


def _of_fsdp(shards: tuple[Path, ...]) -> list[tuple[Path, str]]:
    return [(path, fault) for path in shards if (fault := _archive(path))]


def _archive(path: Path) -> str:
    """Return what is wrong with a file of torch.save's; empty if nothing is."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        return "no such file"
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        return f"{size} bytes that are no whole archive ({error}): it was cut short or damaged"
    except OSError as error:
        return str(error)
    return f"a wrong checksum of {damaged} in it" if damaged else ""


def _of_megatron(folder: Path) -> list[tuple[Path, str]]:
    metadata = folder / ".metadata"
    try:
        from torch.distributed.checkpoint import FileSystemReader

        table = FileSystemReader(folder).read_metadata().storage_data or {}
    except FileNotFoundError:
        return [(metadata, "no such file")]
    except (EOFError, pickle.UnpicklingError, AttributeError, ImportError, ValueError, IndexError) as error:
        return [(metadata, f"a file that cannot be read ({error!r})")]
    ends: dict[str, int] = {}
    for place in table.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    faults = []
    for name in sorted(ends):
        path = folder / name
        if not path.is_file():
            faults.append((path, "no such file"))
        elif path.stat().st_size < ends[name]:
            faults.append((path, f"{path.stat().st_size} of {ends[name]} bytes: it was cut short"))
    return faults
