"""Where the source of an upstream at a pin is: a wheel from PyPI, or a checkout below `VERL_NPU_UPSTREAMS`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from verl_npu import environment

__all__ = ["DownloadFailed", "NotHere", "find"]

_DISTRIBUTIONS = {"verl": "verl", "transformers": "transformers", "hydra": "hydra-core"}
# Pins of the above that no wheel holds, and what their checkouts are called: the recipes lie beside v0.6.1's package.
_CHECKOUTS = {"796871d7": "796871d7", "ccd7d934": "ccd7d934", "v0.6.1-recipe": "v0.6.1"}


class NotHere(Exception):
    """The source of a pin is in no registry, and there is no checkout of it: the message says which is missing."""


class DownloadFailed(Exception):
    """pip could not download a wheel."""


def find(upstream: str, pin: str) -> Path:
    """Return the wheel, downloaded once, or the checkout. Raises NotHere or DownloadFailed."""
    if upstream in _DISTRIBUTIONS and pin not in _CHECKOUTS:
        return _wheel(_DISTRIBUTIONS[upstream], pin.removeprefix("v"))
    name = f"{upstream}-{_CHECKOUTS.get(pin, pin)}"
    folder = environment.UPSTREAMS.read()
    if not folder:
        raise NotHere(f"{upstream} {pin} is in git only: set VERL_NPU_UPSTREAMS to a folder with {name}/")
    checkout = Path(folder) / name
    if not checkout.is_dir():
        raise NotHere(f"{upstream} {pin} is in git only: VERL_NPU_UPSTREAMS={folder} has no {name}/")
    return checkout


def _wheel(distribution: str, version: str) -> Path:
    base = environment.CACHE.read() or Path.home() / ".cache" / "verl-npu"
    folder = Path(base) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version=3.11", "--dest", str(folder), f"{distribution}=={version}"]
        if subprocess.run(command, check=False).returncode:
            raise DownloadFailed(f"pip could not download {distribution}=={version}: its own lines above say why")
    (wheel,) = folder.glob(pattern)
    return wheel
