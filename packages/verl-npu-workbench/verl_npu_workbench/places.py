"""Atomic writing of files: a reader never sees a half-written file."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Write a file atomically. If the command is interrupted, the file keeps its old content.

    Raises OSError if the file cannot be written.
    """
    if path.exists() and not path.is_file():
        # A pipe or a terminal cannot be replaced.
        path.write_bytes(content)
        return
    # Replace the target of a link and keep the link.
    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
