"""The sources of the pins: wheels from PyPI, and checkouts that `VERL_NPU_UPSTREAMS` names.

MindSpeed is in no registry: its tests run where that folder has `mindspeed-<revision>/`, checkouts of
github.com/Ascend/MindSpeed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DISTRIBUTIONS = {"verl": "verl", "transformers": "transformers", "hydra": "hydra-core"}
# Pins that are in no registry; a folder of checkouts has them as verl-796871d7/ and so on.
CHECKOUTS = ("796871d7", "ccd7d934")


def _wheels() -> Path:
    base = os.environ.get("VERL_NPU_CACHE") or Path.home() / ".cache" / "verl-npu"
    folder = Path(base) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def source() -> Callable[[str, str], Path]:
    """Give the source of an upstream at a pin: downloaded once, or a checkout; skips where neither can be had."""

    def find(upstream: str, pin: str) -> Path:
        if upstream == "mindspeed":
            checkout = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none")) / f"mindspeed-{pin}"
            if not checkout.is_dir():
                pytest.skip(f"MindSpeed is in no registry: set VERL_NPU_UPSTREAMS to a folder with {checkout.name}/")
            return checkout
        if pin in CHECKOUTS:
            folder = os.environ.get("VERL_NPU_UPSTREAMS")
            if not folder:
                pytest.skip(f"{upstream} {pin} is in no registry: set VERL_NPU_UPSTREAMS to a folder with verl-{pin}/")
            checkout = Path(folder) / f"{upstream}-{pin}"
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
