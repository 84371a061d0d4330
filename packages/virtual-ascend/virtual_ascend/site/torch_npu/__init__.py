"""virtual-ascend's torch_npu (SIMULATED): the same names as in torch_npu, on a device that computes on the CPU.

An operator of torch_npu that is not implemented here exists, but raises NotImplementedError with its name when it is
called. Other names do not exist.
"""

from __future__ import annotations

from virtual_ascend import switch

_torch_was_there = switch.torch_is_there()
ORG_AUTOLOAD = switch.switch_off()

import torch  # noqa: E402
import virtual_ascend  # noqa: E402

# `import torch` has loaded the device, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0. The imports below need it.
virtual_ascend.load()

from torch_npu import _C, _saving, npu, profiler, utils, version  # noqa: E402
from torch_npu._operators import *  # noqa: E402, F403
from torch_npu._operators import ATB as _ATB  # noqa: E402
from torch_npu._operators import IMPLEMENTED, MISSING  # noqa: E402
from torch_npu._unimplemented import is_older_than, leave_out  # noqa: E402
from torch_npu.npu._format import Format  # noqa: E402
from torch_npu.npu.streams import erase_stream  # noqa: E402
from torch_npu.version import __version__  # noqa: E402

switch.switch_back(ORG_AUTOLOAD, _torch_was_there)

_saving.install()
if not is_older_than("2.7.1"):
    from torch_npu import multiprocessing

    multiprocessing.reductions.install()
if "torch_npu.atb" in _ATB:
    from torch_npu import atb  # noqa: F401
if torch.distributed.is_available():
    from torch_npu import distributed  # noqa: F401


def _autoload() -> None:
    """Do nothing. An installed torch_npu, which this package hides, names this function as its entry point."""


# The dtypes that the device's Tensor methods do not convert, as in torch_npu.
unsupported_dtype = [torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8]

__all__ = [
    "_C",
    "Format",
    "__version__",
    "erase_stream",
    "multiprocessing",
    "npu",
    "profiler",
    "unsupported_dtype",
    "utils",
    "version",
]
__all__ = leave_out("torch_npu", globals(), [*__all__, *IMPLEMENTED, *MISSING])
