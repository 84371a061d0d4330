"""Finds out whether this machine has real NPUs, or a compiler for virtual NPUs.

This module uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from harness.errors import BadInput
from verl_npu.language import gettext as _

_PROBE = "import torch_npu, torch; print(torch.npu.device_count() if torch.npu.is_available() else 0)"


@dataclass(frozen=True)
class Machine:
    """The NPUs that a run will use."""

    virtual: bool
    npus: int


def _real_npus(python: str) -> int:
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ASCEND"}
    answer = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False, env=environment)
    last = answer.stdout.strip().splitlines()[-1:] if answer.returncode == 0 else []
    return int(last[0]) if last and last[0].isdigit() else 0


def look(npus: int, python: str = sys.executable) -> Machine:
    """Choose real NPUs if a working torch_npu finds any, otherwise virtual NPUs. Raise BadInput if neither kind
    works."""
    asked = os.environ.get("VIRTUAL_ASCEND")
    if asked is not None and (not asked.isdigit() or int(asked) < 1):
        raise BadInput(
            _(
                "VIRTUAL_ASCEND: expected the number of virtual NPUs, at least 1; found {found!r}. Correct or unset "
                "the variable"
            ).format(found=asked)
        )
    real = _real_npus(python)
    if real:
        if asked is not None:
            raise BadInput(
                _(
                    "VIRTUAL_ASCEND={asked}: the variable requests virtual NPUs, but this machine has {real} real "
                    "NPUs. Unset the variable to use the real NPUs"
                ).format(asked=asked, real=real)
            )
        found = Machine(virtual=False, npus=real)
    else:
        found = Machine(virtual=True, npus=int(asked) if asked else npus)
        if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
            raise BadInput(
                _(
                    "virtual NPUs: expected a C++ compiler (c++, g++ or clang++) to build the device; found none. "
                    "Install a compiler, for example the package g++, or set CXX to its path"
                )
            )
    if npus > found.npus:
        if found.virtual:
            said = _("--npus: {npus} ranks, but {found} virtual NPUs: raise VIRTUAL_ASCEND or unset it")
        else:
            said = _("--npus: {npus} ranks, but {found} real NPUs: use --npus {found} or fewer")
        raise BadInput(said.format(npus=npus, found=found.npus))
    return found
