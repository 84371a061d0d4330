"""virtual-ascend's `libhccl.so`: HCCL's C functions, for programs that load them directly (`HCCL_SO_PATH`)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from pathlib import Path

from ..cache import check_owner, is_finished, publish, unloadable, writing
from ..device import build

NAME = "libhccl.so"
SOURCE = Path(__file__).parent / "libhccl.cpp"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", f"-Wl,-soname,{NAME}")


def library(cache: Path) -> Path:
    """Return the path of the library. The library is shipped with the package or cached; otherwise, it is compiled
    first, which takes 2 s and does not require torch.

    Raises:
        BuildError: there is no compiler, or the compiler failed.
    """
    text = b"".join(path.read_bytes() for path in sources())
    key = f"hccl-{platform.machine()}-{hashlib.sha256(' '.join(FLAGS).encode() + text).hexdigest()[:16]}"
    shipped = build.PREBUILT / key / NAME
    if shipped.is_file():
        return shipped
    target = cache / key / NAME
    if not is_finished(target):
        with writing(f"compiling {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f"{NAME}.{os.getpid()}")
            build.run_compiler(fresh, [SOURCE], FLAGS, NAME)
            # If several processes compile at once, any of their results will do.
            publish(fresh, target)
    check_owner(target)
    return target


def load(path: Path) -> None:
    """Load the library. Programs then find it by its bare name, as they do after torch_npu has loaded the real HCCL.

    Raises:
        BuildError: the library is damaged.
    """
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise unloadable(path, str(error)) from error


def sources() -> list[Path]:
    """Return every file that the library is compiled from."""
    return [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
