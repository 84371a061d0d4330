"""`python -m verl_npu.virtual.device.compiling FOLDER`: compile csrc/ there.

`build` runs it in a process of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import build

# To read torch's headers takes 10 s and 1 GiB, so the sources are compiled as two units and not each by itself.
_OPERATORS = "torch/library.h"


def units(sources: Path) -> dict[str, list[Path]]:
    """What is compiled together: the sources that register operators, and all others."""
    found: dict[str, list[Path]] = {"operators": [], "runtime": []}
    for source in sorted(sources.glob("*.cpp")):
        found["operators" if _OPERATORS in source.read_text() else "runtime"].append(source)
    return found


def main(folder: str) -> None:
    """Compile `verl_npu_virtual_C.so` into `folder`."""
    from torch.utils import cpp_extension

    written = []
    for name, sources in units(build.SOURCES).items():
        unit = Path(folder) / f"{name}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        written.append(str(unit))
    os.environ.setdefault("MAX_JOBS", str(len(written)))
    cpp_extension.load(
        build.NAME,
        written,
        extra_cflags=list(build.FLAGS),
        build_directory=folder,
        is_python_module=True,
    )


if __name__ == "__main__":
    main(sys.argv[1])
