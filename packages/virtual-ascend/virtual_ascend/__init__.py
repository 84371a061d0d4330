"""Virtual NPUs: a PyTorch device called `npu` that computes on the CPU and speaks `hccl` over loopback.

The device is off unless `VIRTUAL_ASCEND=<number of NPUs>` is set. Everything that it computes is simulated: it shows
whether a program runs on the `npu` device, but not the numerical results, the HCCL, or the speed of a real NPU.
Programs can check `torch_npu.__simulated__`.

The public API consists of the functions here, `virtual_ascend.ledger`, `virtual_ascend.testing`,
`virtual_ascend.errors`, and the variables in `virtual_ascend.variables`. A package that must run code when virtual
NPUs are loaded registers a function without arguments under the entry point group `virtual_ascend.extensions`.
virtual-ascend calls the function once in each process with virtual NPUs, before `import torch` returns.
"""

from __future__ import annotations

import os
import sys

from .version import __version__

# Importing typing would cost every `import torch` more than the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "__version__",
    "configured_npus",
    "description",
    "expose",
    "has_own_torch_npu",
    "is_loaded",
    "load",
    "requested",
]


def autoload() -> None:
    """If virtual NPUs are requested, load them at the end of `import torch`. This function never raises an error."""
    # Without virtual NPUs, this line is all that the package costs.
    if os.environ.get("VIRTUAL_ASCEND", "").strip("0 "):
        from . import activation

        activation.autoload()


def requested(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the environment requests virtual NPUs: `VIRTUAL_ASCEND` is neither empty nor zero."""
    from .variables import asked_for

    return asked_for(environ)


def configured_npus(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of virtual NPUs on this machine, or 0 if no virtual NPUs are requested.

    Raises:
        SettingError: `VIRTUAL_ASCEND` is not a number of NPUs.
    """
    from .variables import NPUS

    return int(NPUS.read(environ))


def is_loaded() -> bool:
    """Return whether virtual NPUs are loaded in this process."""
    return bool(description())


def description() -> str:
    """Return a printable description of what is simulated in this process, or an empty string if nothing is
    simulated."""
    return str(getattr(sys.modules.get("torch_npu"), "__simulated__", ""))


def has_own_torch_npu() -> bool:
    """Return whether this process uses virtual-ascend's own torch_npu instead of an installed wheel."""
    from .device import extension

    return extension.is_loaded()


def expose() -> None:
    """Make `torch_npu` importable without importing torch.

    If a torch_npu wheel is installed, this function ensures that an import of the wheel finds a stub CANN. If no wheel
    is installed, or if virtual-ascend's own torch_npu is requested, virtual-ascend's packages `torch_npu` and `acl`
    are added to `sys.path`.

    Raises:
        RealAscendError: CANN is installed on this machine, or a wheel's torch_npu is already imported although
            virtual-ascend's own torch_npu is requested.
        SettingError: an environment variable of virtual-ascend has an invalid value.
    """
    from . import activation

    activation.expose()


def load() -> None:
    """Load the device, hccl, `torch.npu`, `torch_npu`, `acl`, `npu-smi`, and CANN in this process. Repeated calls do
    nothing.

    Raises:
        VirtualAscendError: a component is missing, or an environment variable is invalid. See its subclasses.
    """
    from . import activation

    activation.load()
