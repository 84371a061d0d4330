"""`python -m virtual_ascend.shipping` copies the compiled device for the installed torch version into this package.

A wheel built from this tree (`python -m build --wheel`) then contains the device. Machines with the same torch,
Python, and architecture need no compiler; all others compile as before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .cache import put
from .device import build
from .errors import VirtualAscendError
from .hccl import library
from .variables import cache_folder


def ship(torch_version: str, cache: Path) -> list[Path]:
    """Copy libhccl.so and the compiled device extension for this torch version into the package, and return their
    paths.

    Libraries that are not in the cache are compiled.

    Raises:
        BuildError: a library cannot be compiled.
    """
    return [_copy(build.library(torch_version, cache)), _copy(library.library(cache))]


def _copy(compiled: Path) -> Path:
    shipped = build.PREBUILT / compiled.parent.name / compiled.name
    if not shipped.is_file():
        shipped.parent.mkdir(parents=True, exist_ok=True)
        put(shipped, compiled.read_bytes())
    return shipped


def main() -> None:
    """Copy the libraries for this environment's torch version into the package, and print their paths."""
    import torch

    try:
        for path in ship(torch.__version__, cache_folder()):
            print(path)
    except VirtualAscendError as error:
        sys.exit(f"virtual-ascend: {error}")


if __name__ == "__main__":
    main()
