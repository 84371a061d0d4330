"""What tests of several folders use: the wheel of this project, and the sources of the pins.

Those come from PyPI as wheels, and as the checkouts that `VERL_NPU_UPSTREAMS` names. MindSpeed is in no registry, and
vllm-ascend's packages bring an NPU's own: their tests run where that folder has `mindspeed-<revision>/`, checkouts of
github.com/Ascend/MindSpeed, and `vllm-ascend-<version>/`, of github.com/vllm-project/vllm-ascend.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {"verl": "verl", "transformers": "transformers", "hydra": "hydra-core"}
UNREGISTERED = ("mindspeed", "vllm-ascend")
# Pins that are in no registry; a folder of checkouts has them as verl-796871d7/ and so on.
# The wheel of v0.6.1 holds no recipes; its checkout does.
CHECKOUTS = {"796871d7": "796871d7", "ccd7d934": "ccd7d934", "v0.6.1-recipe": "v0.6.1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the virtual device first.

    They load it into this process, and torch's autograd engine must not have run before: it counts the devices once.
    """
    items.sort(key=lambda item: "virtual" not in item.path.parts)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("verl_npu-*.whl")
    return made


def _wheels() -> Path:
    base = os.environ.get("VERL_NPU_CACHE") or Path.home() / ".cache" / "verl-npu"
    folder = Path(base) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def source() -> Callable[[str, str], Path]:
    """Give the source of an upstream at a pin: downloaded once, or a checkout; skips where neither can be had."""

    def find(upstream: str, pin: str) -> Path:
        if upstream in UNREGISTERED:
            checkout = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none")) / f"{upstream}-{pin}"
            if not checkout.is_dir():
                pytest.skip(
                    f"{upstream} is needed as git has it: set VERL_NPU_UPSTREAMS to a folder with {checkout.name}/"
                )
            return checkout
        if pin in CHECKOUTS:
            folder = os.environ.get("VERL_NPU_UPSTREAMS")
            if not folder:
                name = CHECKOUTS[pin]
                pytest.skip(
                    f"{upstream} {pin} is in no registry: set VERL_NPU_UPSTREAMS to a folder with verl-{name}/"
                )
            checkout = Path(folder) / f"{upstream}-{CHECKOUTS[pin]}"
            assert checkout.is_dir(), f"VERL_NPU_UPSTREAMS={folder} has no {checkout.name}"
            return checkout
        distribution, version = DISTRIBUTIONS[upstream], pin.removeprefix("v")
        pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
        if not list(_wheels().glob(pattern)):
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
                    *("--python-version=3.11", "--dest", str(_wheels()), f"{distribution}=={version}"),
                ],
                check=True,
            )
        (wheel,) = _wheels().glob(pattern)
        return wheel

    return find


@pytest.fixture(scope="session")
def importable(source: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a folder from which verl at a pin is imported, by PYTHONPATH; nothing is installed."""
    unpacked: dict[str, Path] = {}

    def find(pin: str) -> Path:
        found = source("verl", pin)
        if found.is_dir():
            return found
        if pin not in unpacked:
            unpacked[pin] = tmp_path_factory.mktemp(f"verl-{pin}")
            with zipfile.ZipFile(found) as wheel:
                wheel.extractall(unpacked[pin])
        return unpacked[pin]

    return find
