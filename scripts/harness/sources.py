"""Where the source of an upstream at a pin is: a wheel from PyPI, or a checkout below `VERL_NPU_UPSTREAMS`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.errors import BadInput

__all__ = ["NotHere", "find"]

_DISTRIBUTIONS = {"verl": "verl", "transformers": "transformers", "hydra": "hydra-core"}
# Pins of the above that no wheel holds, and what their checkouts are called: the recipes lie beside v0.6.1's package.
_CHECKOUTS = {"796871d7": "796871d7", "ccd7d934": "ccd7d934", "v0.6.1-recipe": "v0.6.1"}


class NotHere(BadInput):
    """The source of a pin is in no registry, and there is no checkout of it."""


def find(upstream: str, pin: str) -> Path:
    """Give the wheel, downloaded once, or the checkout. Raises NotHere, saying which folder is missing where."""
    if upstream in _DISTRIBUTIONS and pin not in _CHECKOUTS:
        return _wheel(_DISTRIBUTIONS[upstream], pin.removeprefix("v"))
    name = f"{upstream}-{_CHECKOUTS.get(pin, pin)}"
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        raise NotHere(f"{upstream} {pin} is needed as git has it: set VERL_NPU_UPSTREAMS to a folder with {name}/")
    checkout = Path(folder) / name
    if not checkout.is_dir():
        raise NotHere(f"{upstream} {pin} is needed as git has it: VERL_NPU_UPSTREAMS={folder} has no {name}/")
    return checkout


def _wheel(distribution: str, version: str) -> Path:
    base = os.environ.get("VERL_NPU_CACHE") or Path.home() / ".cache" / "verl-npu"
    folder = Path(base) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version=3.11", "--dest", str(folder), f"{distribution}=={version}"]
        if subprocess.run(command, check=False).returncode:
            raise BadInput(f"pip could not download {distribution}=={version}: the lines above say why")
    (wheel,) = folder.glob(pattern)
    return wheel
