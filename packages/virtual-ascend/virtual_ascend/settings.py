"""The settings of virtual-ascend, read from environment variables.

This module imports only the standard library, because the settings are read at the end of every `import torch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import variables
from .errors import SettingError
from .faults import Fault, parse


@dataclass(frozen=True, slots=True)
class Settings:
    """The virtual-ascend settings of one process."""

    devices: int
    cache: Path
    torch_npu_version: str
    cann_version: str
    driver_version: str
    memory: float
    """The memory of one NPU, in GiB."""
    phantom: float
    """The minimum size of a phantom tensor, in MiB, or 0 if phantoms are disabled."""
    torch_npu: str
    """The torch_npu that virtual NPUs use: "real", "ours", or "auto"."""
    delayed_copies: bool
    """Whether a non-blocking copy between host and NPU arrives only when the program waits for it."""
    strict_graphs: bool
    """Whether a replay that uses freed memory is an error."""
    faults: tuple[Fault, ...]

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Parse the environment variables.

        Raises:
            SettingError: a variable has an invalid value, or no NPUs are requested.
        """
        return cls(
            devices=_devices(environ),
            cache=variables.cache_folder(environ),
            torch_npu_version=_version(variables.TORCH_NPU_VERSION, environ),
            cann_version=_version(variables.CANN_VERSION, environ),
            driver_version=_version(variables.DRIVER_VERSION, environ),
            memory=variables.MEMORY.read(environ),
            phantom=variables.PHANTOM.read(environ),
            torch_npu=variables.TORCH_NPU.read(environ),
            delayed_copies=variables.COPIES.read(environ) == "delayed",
            strict_graphs=variables.GRAPHS.read(environ) == "strict",
            faults=parse(variables.FAULTS.text(environ)),
        )


def _devices(environ: Mapping[str, str] | None) -> int:
    devices = int(variables.NPUS.read(environ))
    if devices == 0:
        name = variables.NPUS.name
        raise SettingError(
            subject=name,
            expected="at least one virtual NPU, because the installed torch_npu comes from virtual-ascend",
            found="0 or no value",
            fix=f"set {name}=2",
        )
    return devices


def _version(variable: variables.Variable, environ: Mapping[str, str] | None) -> str:
    text = variable.text(environ)
    # Versions become parts of file names, and of text that programs parse.
    if not all(character.isascii() and (character.isalnum() or character in ".+-_") for character in text):
        raise variable.refuse(text, f"set {variable.name}={variable.default}, or unset it")
    return text
