"""The virtual Ascend: a device that answers to `npu`, computes on the CPU, and talks `hccl` over loopback.

Opt-in by `VIRTUAL_ASCEND=<number of NPUs>`. Everything it computes is simulated: it shows whether a program runs on
the `npu` device, not what a real NPU's numbers, HCCL or speed would be. `torch_npu.__simulated__` says so to any
program.

Public are the functions here, `virtual_ascend.ledger`, `virtual_ascend.testing`, `virtual_ascend.errors`, and the
variables in `virtual_ascend.variables`. A package that has to do something when virtual NPUs come up names a function
without arguments in the entry points `virtual_ascend.extensions`; it is called once in each process that has them,
before the program goes on after `import torch`.
"""

from __future__ import annotations

import os
import sys

from .version import __version__

# Typing would cost every `import torch` more than all else that is here.
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
    """The entry point of `torch.backends`: called at the end of `import torch`, it never raises."""
    # Where nobody asks for virtual NPUs, this is all that they cost.
    if os.environ.get("VIRTUAL_ASCEND", "").strip("0 "):
        from . import activation

        activation.autoload()


def requested(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for virtual NPUs: `VIRTUAL_ASCEND` is set, not empty and not zero."""
    from .variables import asked_for

    return asked_for(environ)


def configured_npus(environ: Mapping[str, str] | None = None) -> int:
    """The number of NPUs that this machine pretends to have; 0 if none was asked for.

    Raises:
        SettingError: `VIRTUAL_ASCEND` is not a number of NPUs.
    """
    from .variables import NPUS

    return int(NPUS.read(environ))


def is_loaded() -> bool:
    """Whether virtual NPUs are up in this process."""
    return bool(description())


def description() -> str:
    """What is simulated in this process, for a program's summary; empty if nothing is."""
    return str(getattr(sys.modules.get("torch_npu"), "__simulated__", ""))


def has_own_torch_npu() -> bool:
    """Whether the torch_npu of this process is the virtual Ascend's own, and not an installed wheel's."""
    from .device import extension

    return extension.is_loaded()


def expose() -> None:
    """Make `torch_npu` importable. No torch import.

    That of an installed wheel then finds a stub CANN; without one, or if ours is asked for, our packages `torch_npu`
    and `acl` go on `sys.path`.

    Raises:
        RealAscendError: there is a CANN here, or a torch_npu that is not ours is imported where ours is asked for.
        SettingError: a variable of the virtual Ascend has a value that is not understood.
    """
    from . import activation

    activation.expose()


def load() -> None:
    """Bring everything up in this process, once: device, hccl, `torch.npu`, `torch_npu`, `acl`, `npu-smi`, CANN.

    Raises:
        VirtualAscendError: one of its subclasses says what is missing, or which variable is not understood.
    """
    from . import activation

    activation.load()
