"""`python -m virtual_ascend.device.compiling NAME SOURCES FOLDER`: compile the sources into a module there.

`build` runs it in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from . import build

# To read torch's headers takes 10 s and 1 GiB, so the sources are compiled as two units and not each by itself.
_OPERATORS = "torch/library.h"


def units(sources: Path) -> dict[str, list[Path]]:
    """What is compiled together: the sources that register operators, and all others."""
    found: dict[str, list[Path]] = {}
    for source in sorted(sources.glob("*.cpp")):
        found.setdefault("operators" if _OPERATORS in source.read_text() else "runtime", []).append(source)
    return found


def _end_with_parent() -> None:
    # Whoever kills a process that waits for this one, as an operating system without memory does, knows nothing of the
    # compilers, each of which takes a gigabyte.
    os.read(sys.stdin.fileno(), 1)
    # Not SIGKILL: ninja has each compiler in a group of its own, and passes on what it is asked to end by.
    os.killpg(os.getpgrp(), signal.SIGTERM)


def main(name: str, sources: str, folder: str) -> None:
    """Compile `name.so` into `folder`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from torch.utils import cpp_extension

    written = []
    for title, files in units(Path(sources)).items():
        unit = Path(folder) / f"{title}.cpp"
        unit.write_text("".join(f'#include "{file}"\n' for file in files))
        written.append(str(unit))
    os.environ.setdefault("MAX_JOBS", str(len(written)))
    cpp_extension.load(
        name,
        written,
        extra_cflags=list(build.FLAGS),
        build_directory=folder,
        is_python_module=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
