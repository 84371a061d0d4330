"""What the environment asks of the virtual Ascend. Standard library only: read at the end of every `import torch`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from verl_npu.virtual import DEVICES
from verl_npu.virtual.errors import SettingError
from verl_npu.virtual.faults import FAULTS, Fault, parse

CACHE = "VERL_NPU_CACHE"
CANN_VERSION = "VERL_NPU_VIRTUAL_CANN_VERSION"
COPIES = "VERL_NPU_VIRTUAL_COPIES"
DRIVER_VERSION = "VERL_NPU_VIRTUAL_DRIVER_VERSION"
MEMORY = "VERL_NPU_VIRTUAL_MEMORY"
TORCH_NPU_VERSION = "VERL_NPU_VIRTUAL_TORCH_NPU_VERSION"

MAX_DEVICES = 64  # kMaxDevices in csrc/runtime.h
USUAL_CANN = "8.3.RC1"
USUAL_DRIVER = "25.2.0"
USUAL_TORCH_NPU = "2.7.1"
USUAL_MEMORY = 64.0  # GiB; kUsualMemory in csrc/allocator.h


class Copies(Enum):
    """When a non-blocking copy between host and NPU is there."""

    IMMEDIATE = "immediate"
    DELAYED = "delayed"  # when it is waited for


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's settings."""

    devices: int
    cache: Path
    torch_npu_version: str
    cann_version: str = USUAL_CANN
    driver_version: str = USUAL_DRIVER
    memory: float = USUAL_MEMORY
    copies: Copies = Copies.IMMEDIATE
    faults: tuple[Fault, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Parse the environment.

        Raises:
            SettingError: a variable has a value that means nothing.
        """
        env = os.environ if environ is None else environ
        return cls(
            devices=_devices(env.get(DEVICES, "")),
            cache=_cache(env),
            torch_npu_version=_version(env, TORCH_NPU_VERSION, USUAL_TORCH_NPU),
            cann_version=_version(env, CANN_VERSION, USUAL_CANN),
            driver_version=_version(env, DRIVER_VERSION, USUAL_DRIVER),
            memory=_memory(env.get(MEMORY, "")),
            copies=_copies(env.get(COPIES, "")),
            faults=parse(env.get(FAULTS, "")),
        )


def _devices(value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_DEVICES):
        raise SettingError(
            f"{DEVICES}={value!r}: expected a number of NPUs from 1 to {MAX_DEVICES}; set {DEVICES}=2 (0 or "
            "unset: none)"
        )
    return int(text)


def _version(env: Mapping[str, str], name: str, usual: str) -> str:
    text = env.get(name, "").strip()
    # They become parts of file names and of text that programs parse.
    if not all(character.isascii() and (character.isalnum() or character in ".+-_") for character in text):
        raise SettingError(f"{name}={text!r}: expected a version like {usual}; set {name}={usual}, or unset it")
    return text or usual


def _memory(value: str) -> float:
    text = value.strip()
    if not text:
        return USUAL_MEMORY
    try:
        memory = float(text)
    except ValueError:
        memory = 0.0
    if not (math.isfinite(memory) and memory > 0):
        raise SettingError(f"{MEMORY}={value!r}: expected the GiB of an NPU, above 0; set {MEMORY}=64, or unset it")
    return memory


def _copies(value: str) -> Copies:
    text = value.strip()
    if not text:
        return Copies.IMMEDIATE
    try:
        return Copies(text)
    except ValueError:
        expected = " or ".join(mode.value for mode in Copies)
        raise SettingError(f"{COPIES}={value!r}: expected {expected}; set {COPIES}=delayed, or unset it") from None


def _cache(env: Mapping[str, str]) -> Path:
    if own := env.get(CACHE):
        return Path(own) / "virtual"
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verl-npu" / "virtual"
