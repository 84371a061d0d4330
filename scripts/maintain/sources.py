"""Finds the source of an upstream at a pin: a wheel from PyPI, or a checkout in `VERL_NPU_UPSTREAMS`.

Releases of verl up to v0.7.0 have both, because only the checkout has recipes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.pins import PINS, is_released

from verl_npu import environment
from verl_npu.pins import locks_folder

_DISTRIBUTIONS = {
    "verl": "verl",
    "transformers": "transformers",
    "hydra": "hydra-core",
    "tensordict": "tensordict",
    "vllm-ascend": "vllm-ascend",
}


class SourceMissing(Exception):
    """The source of a pin is in no registry, and its checkout is missing. The message names the checkout."""


class DownloadFailed(Exception):
    """pip could not download a wheel."""


def find(upstream: str, pin: str) -> Path:
    """Return the complete source of a pin: its checkout if the wheel lacks a part, otherwise the wheel, downloaded
    once.

    Raise SourceMissing or DownloadFailed.
    """
    if _is_released(upstream, pin) and not _has_recipes(upstream, pin):
        return _wheel(_DISTRIBUTIONS[upstream], pin.removeprefix("v"))
    name = f"{upstream}-{pin}"
    reason = _why_no_wheel(upstream, pin)
    folder = environment.UPSTREAMS.read()
    if not folder:
        raise SourceMissing(f"{upstream} {pin} {reason}: set VERL_NPU_UPSTREAMS to a folder with {name}/")
    checkout = Path(folder) / name
    if not checkout.is_dir():
        raise SourceMissing(f"{upstream} {pin} {reason}: VERL_NPU_UPSTREAMS={folder} has no {name}/")
    return checkout


def all_of(upstream: str, pin: str) -> list[Path]:
    """Return every available source of a pin: first the checkout, if there is one, then the wheel.

    Raise SourceMissing if there is none, or DownloadFailed.
    """
    if not _is_released(upstream, pin):
        return [find(upstream, pin)]
    wheel = _wheel(_DISTRIBUTIONS[upstream], pin.removeprefix("v"))
    if not _has_recipes(upstream, pin):
        return [wheel]
    try:
        return [find(upstream, pin), wheel]
    except SourceMissing:
        return [wheel]


def _is_released(upstream: str, pin: str) -> bool:
    # vllm-ascend's oldest releases have no wheel, and its wheels are large: only those with a lock are downloaded.
    if upstream == "vllm-ascend":
        return (locks_folder() / upstream / pin).is_dir()
    return upstream in _DISTRIBUTIONS and (upstream != "verl" or is_released(pin))


def _has_recipes(upstream: str, pin: str) -> bool:
    return upstream == "verl" and pin in PINS and PINS[pin].on_pypi and PINS[pin].recipes


def _why_no_wheel(upstream: str, pin: str) -> str:
    if _has_recipes(upstream, pin):
        return "has recipes that are in no wheel"
    return "has wheels of hundreds of megabytes" if upstream == "vllm" else "is in git only"


def _wheel(distribution: str, version: str) -> Path:
    base = Path.home() / ".cache" / "verl-npu"
    folder = Path(base) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        # Download into a folder beside its place, so that another process finds a complete wheel or none.
        with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as beside:
            command += ["--python-version=3.11", "--dest", beside, f"{distribution}=={version}"]
            if subprocess.run(command, check=False).returncode:
                raise DownloadFailed(f"pip could not download {distribution}=={version}; see its output above")
            (downloaded,) = Path(beside).glob(pattern)
            downloaded.replace(folder / downloaded.name)
    (wheel,) = folder.glob(pattern)
    return wheel
