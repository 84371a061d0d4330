"""`python -m virtual_ascend.device.compiling NAME SOURCES FOLDER` compiles the sources into a module in the folder.

`build` runs this program in a separate process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from . import build

# Reading torch's headers takes 10 s and 1 GiB, so the sources are compiled as two units and not one by one.
_OPERATORS = "torch/library.h"


def units(sources: Path) -> dict[str, list[Path]]:
    """Group the sources into compilation units: the sources that register operators, and all others."""
    found: dict[str, list[Path]] = {}
    for source in sorted(sources.glob("*.cpp")):
        found.setdefault("operators" if _OPERATORS in source.read_text() else "runtime", []).append(source)
    return found


def _end_with_parent() -> None:
    # If the waiting process is killed, for example by the kernel's OOM killer, nobody else would end the compilers,
    # each of which takes a gigabyte.
    os.read(sys.stdin.fileno(), 1)
    # Not SIGKILL: ninja puts each compiler into a process group of its own, and forwards SIGTERM to it.
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
