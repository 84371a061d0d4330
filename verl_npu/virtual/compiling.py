"""`python -m verl_npu.virtual.compiling FOLDER`: compile csrc/ there. Run by `build`, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from verl_npu.virtual import build


def main(folder: str) -> None:
    """Leave `verl_npu_virtual_C.so` in `folder`."""
    from torch.utils import cpp_extension

    os.environ.setdefault("MAX_JOBS", str(min(4, os.cpu_count() or 1)))  # each job of torch's headers takes 1 to 2 GiB
    cpp_extension.load(
        build.NAME,
        [str(source) for source in sorted(Path(build.SOURCES).glob("*.cpp"))],
        extra_cflags=list(build.FLAGS),
        build_directory=folder,
        is_python_module=True,
    )


if __name__ == "__main__":
    main(sys.argv[1])
