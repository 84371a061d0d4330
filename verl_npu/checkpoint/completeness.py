"""Whether every file of a checkpoint is there, and whole. It is asked before anything is written."""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import IO

from ..errors import CheckpointError
from .layout import Backend, Layout

__all__ = ["check"]

_ARCHIVE = b"PK"


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
        with path.open("rb") as stream:
            fault = _in_archive(stream)
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return str(error)
    return f"{size} bytes that are {fault}" if fault else ""


def _in_archive(stream: IO[bytes]) -> str:
    try:
        with zipfile.ZipFile(stream) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        return f"no whole archive ({error}): it was cut short or damaged"
    return f"an archive with a wrong checksum of {damaged}" if damaged else ""


def _of_megatron(folder: Path) -> list[tuple[Path, str]]:
    metadata = folder / ".metadata"
    try:
        from torch.distributed.checkpoint import FileSystemReader

        table = FileSystemReader(folder).read_metadata().storage_data or {}
    except FileNotFoundError:
        return [(metadata, "no such file")]
    except (EOFError, pickle.UnpicklingError, AttributeError, ImportError, ValueError, IndexError) as error:
        return [(metadata, f"a file that cannot be read ({error!r})")]
    parts: dict[str, list[tuple[int, int]]] = {}
    for place in table.values():
        parts.setdefault(place.relative_path, []).append((place.offset, place.length))
    return [(folder / name, fault) for name in sorted(parts) if (fault := _parts(folder / name, parts[name]))]


def _parts(path: Path, parts: list[tuple[int, int]]) -> str:
    """Return what is wrong with a file that holds these parts; each tensor is an archive of torch.save's in it."""
    end = max(offset + length for offset, length in parts)
    try:
        size = path.stat().st_size
        if size < end:
            return f"{size} of {end} bytes: it was cut short"
        with path.open("rb") as stream:
            for offset, length in sorted(parts):
                stream.seek(offset)
                content = stream.read(length)
                if content.startswith(_ARCHIVE) and (fault := _in_archive(io.BytesIO(content))):
                    return f"at byte {offset} {fault}"
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return str(error)
    return ""
