"""Files that are put in their places whole: what is read later is never half of one."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Put a file in its place: it is there as it was before, or as it is to be, whatever ends the command meanwhile.

    Raises OSError if the file system refuses.
    """
    if path.exists() and not path.is_file():
        # A pipe or a terminal, which keeps nothing.
        path.write_bytes(content)
        return
    # Where a link leads to, which itself stays.
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
