"""The real torch_npu, from its wheel, which belongs to the torch of these tests: programs import it from a folder."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..processes import Run, environment

# By the version of torch; of each the newest patch.
WHEELS = {
    "2.5.1": "2.5.1.post1",
    "2.7.1": "2.7.1",
    "2.8.0": "2.8.0",
    "2.9.0": "2.9.0",
    "2.10.0": "2.10.0",
    "2.13.0": "2.13.0",
}


@pytest.fixture(scope="session")
def version() -> str:
    """The version of the torch_npu that belongs to the installed torch."""
    torch = pytest.importorskip("torch")
    found = WHEELS.get(torch.__version__.partition("+")[0])
    if found is None:
        pytest.skip(f"expected torch {' or '.join(WHEELS)}, found {torch.__version__}")
    return found


@pytest.fixture(scope="session")
def torch_npu(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the torch_npu for the installed torch; up to 44 MB, once in a session."""
    if not any(str(path).endswith("verl_npu_virtual.pth") for path in importlib.metadata.files("verl_npu") or ()):
        pytest.skip("this verl-npu is not installed, so that nothing of it comes before torch_npu")
    folder = tmp_path_factory.mktemp("torch_npu")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, f"torch_npu=={version}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"torch_npu {version} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.fixture(scope="session")
def settings(torch_npu: Path) -> dict[str, str]:
    """The variables of a process with the real torch_npu on virtual NPUs."""
    path = os.pathsep.join(filter(None, [str(torch_npu), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "VERL_NPU_VIRTUAL_TORCH_NPU": "real"}


@pytest.fixture(scope="session")
def real(settings: dict[str, str]) -> Run:
    """Run a program with two virtual NPUs under the real torch_npu, in a process of its own."""

    def run(code: str, timeout: float = 300, **changes: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment(**{**settings, **changes}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
