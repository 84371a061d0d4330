"""The environment variables of the virtual Ascend, each with its allowed values and its default.

This module also names the variables of Ascend's software that the virtual Ascend reads or sets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .errors import SettingError

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
"""The numbers of the NPUs that a process may use, separated by commas."""
HOME = "ASCEND_HOME_PATH"
"""The folder of CANN, the software on which torch_npu runs."""
OPERATORS = "ASCEND_OPP_PATH"
"""The folder of CANN's operators."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""A variable of torch. If it is 0, `import torch` loads no backend."""
HCCL_LIBRARY = "HCCL_SO_PATH"
"""The path of the libhccl.so that vllm-ascend loads."""
HCCL_INTERFACE = "HCCL_SOCKET_IFNAME"
"""The network interfaces over which the ranks of HCCL meet."""

VARIABLES: dict[str, Variable] = {}
"""All variables by name, in the order in which the documents list them."""


class Variable:
    """An environment variable that holds any text."""

    def __init__(self, name: str, summary: str, *, expected: str, default: str = "") -> None:
        self.name = name
        self.summary = summary
        self.expected = expected
        self.default = default
        VARIABLES[name] = self

    def text(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the variable's value without surrounding spaces. If the value is empty, return the default."""
        return (os.environ if environ is None else environ).get(self.name, "").strip() or self.default

    def refuse(self, text: str, fix: str = "correct it or leave it out") -> SettingError:
        """Return the error for an invalid value."""
        return SettingError(subject=f"{self.name}={text!r}", expected=self.expected, found=repr(text), fix=fix)


class Choice(Variable):
    """A variable whose value is one of a few words, in upper or lower case."""

    def __init__(self, name: str, summary: str, words: tuple[str, ...], *, default: str) -> None:
        super().__init__(name, summary, expected=f"{', '.join(words[:-1])} or {words[-1]}", default=default)
        self.words = words

    def read(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the word in lower case. Raise SettingError for any other text."""
        text = self.text(environ)
        if text.lower() not in self.words:
            raise self.refuse(text)
        return text.lower()


class Number(Variable):
    """A variable whose value is a number within limits. If `whole` is set, it must be a whole number."""

    def __init__(
        self, name: str, summary: str, *, unit: str, default: str, least: float, most: float, whole: bool = False
    ) -> None:
        # The text leaves out limits that only exclude absurd values.
        limits = f"from {least:g} to {most:g}" if whole else "above 0" if least else "from 0"
        super().__init__(
            name, summary, expected=f"{'a whole number' if whole else 'a number'} of {unit} {limits}", default=default
        )
        self.least, self.most, self.whole = least, most, whole

    def read(self, environ: Mapping[str, str] | None = None) -> float:
        """Return the number. Raise SettingError if the text is not a number, or is outside the limits."""
        text = self.text(environ)
        try:
            value = float(int(text)) if self.whole else float(text)
        except ValueError:
            raise self.refuse(text) from None
        # A comparison with NaN is false, so this refuses NaN too.
        if not self.least <= value <= self.most:
            raise self.refuse(text)
        return value


NPUS = Number(
    "VIRTUAL_ASCEND",
    "how many virtual NPUs this machine has; 0 is none",
    unit="NPUs",
    default="0",
    least=0,
    most=64,  # kMaxDevices in csrc/runtime.h
    whole=True,
)
MEMORY = Number(
    "VIRTUAL_ASCEND_MEMORY",
    "the memory of one virtual NPU",
    unit="GiB",
    default="64",  # kUsualMemory in csrc/allocator.h
    least=1e-9,
    most=1 << 20,
)
PHANTOM = Number(
    "VIRTUAL_ASCEND_PHANTOM",
    "the size from which a virtual NPU's tensor is a phantom, which is counted but not computed; 0 is none",
    unit="MiB",
    default="0",
    least=0,
    most=1 << 20,
)
COPIES = Choice(
    "VIRTUAL_ASCEND_COPIES",
    "when a non-blocking copy between host and virtual NPU arrives: at once, or when the program waits for it",
    ("immediate", "delayed"),
    default="immediate",
)
GRAPHS = Choice(
    "VIRTUAL_ASCEND_GRAPHS",
    "what a replay of a graph does with freed memory: report it once and compute with NaN, or raise an error",
    ("told", "strict"),
    default="told",
)
FAULTS = Variable(
    "VIRTUAL_ASCEND_FAULTS",
    "failures that the virtual Ascend causes, such as die:collective=3:rank=1; see docs/virtual-npus.md",
    expected="faults separated by commas",
)
TORCH_NPU = Choice(
    "VIRTUAL_ASCEND_TORCH_NPU",
    "the torch_npu of virtual NPUs: real (installed, over a stub CANN), ours, or auto (real if one is installed)",
    ("auto", "real", "ours"),
    default="auto",
)
TORCH_NPU_VERSION = Variable(
    "VIRTUAL_ASCEND_TORCH_NPU_VERSION",
    "the torch_npu that the virtual Ascend pretends to be",
    expected="a version",
    default="2.7.1",
)
CANN_VERSION = Variable(
    "VIRTUAL_ASCEND_CANN_VERSION",
    "the CANN that the virtual Ascend pretends to have",
    expected="a version",
    default="8.3.RC1",
)
DRIVER_VERSION = Variable(
    "VIRTUAL_ASCEND_DRIVER_VERSION",
    "the NPU driver that the virtual Ascend pretends to have",
    expected="a version",
    default="25.2.0",
)
CACHE = Variable(
    "VIRTUAL_ASCEND_CACHE",
    "the folder to which the virtual device is compiled; ~/.cache/virtual-ascend if it is not set",
    expected="a folder",
)


def asked_for(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether virtual NPUs are requested, even if the requested number is invalid."""
    return bool(NPUS.text(environ).strip("0"))


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for the libraries that are compiled once per machine."""
    if own := CACHE.text(environ):
        # Absolute, because the process may change its working directory later.
        return Path(own).absolute()
    base = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virtual-ascend"
