from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from . import smi
from .box import RIGHT, Box


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of empty shared libraries that need each other as torch_npu's, CANN's and the driver's do."""
    folder = tmp_path_factory.mktemp("libraries")
    for name in ("libascend_hal.so", "libhccl.so", "libascendcl.so", "libatb.so"):
        link(folder, name, name)
    link(folder, "hal.so", "libascend_hal.so")
    link(folder, "hccl.so", "libhccl.so")
    link(folder, "ascendcl.so", "libascendcl.so", "libascend_hal.so")
    link(folder, "torch_npu.so", "libtorch_npu.so", "libhccl.so", "libascendcl.so")
    link(folder, "libinner.so", "libinner.so")
    link(folder, "hccl-inner.so", "libhccl.so", "libinner.so")
    link(folder, "vllm_ascend.so", "vllm_ascend_C.so", "libatb.so")
    for number in (13, 15):
        (folder / "versions.map").write_text(f"CXXABI_1.3.{number} {{ global: symbol; }};\n")
        (folder / "symbol.c").write_text("void symbol(void) {}\n")
        link(
            folder,
            f"stdc++{number}.so",
            "libstdc++.so.6",
            source="symbol.c",
            options=["-Wl,--version-script=versions.map"],
        )
    (folder / "user.c").write_text("void symbol(void); void user(void) { symbol(); }\n")
    link(folder, "needs15.so", "libtorch_npu.so", "stdc++15.so", source="user.c")
    return folder


def link(
    folder: Path, name: str, soname: str, *needed: str, source: str = "", options: list[str] | None = None
) -> None:
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", name, f"-Wl,-soname,{soname}", "-Wl,--no-as-needed"]
    text = [source] if source else ["-x", "c", "/dev/null", "-x", "none"]
    subprocess.run([*command, *(options or []), *text, *needed, "-Wl,--allow-shlib-undefined"], cwd=folder, check=True)


@pytest.fixture
def make(tmp_path: Path, libraries: Path) -> Callable[..., Box]:
    """Return a function that makes the right environment of a pin, on A2 or on A3."""
    by_name: Mapping[str, object] = {right.name: right for right in RIGHT}

    def of(name: str, npus: str = "a2") -> Box:
        return Box.of(by_name[name], tmp_path, libraries, smi.a2() if npus == "a2" else smi.a3())

    return of
