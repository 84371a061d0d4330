"""Loads virtual-ascend in one process, in the same order as torch_npu."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Mapping
from types import ModuleType

from . import cann, exposure, faults, reporting, variables
from .device import build, extension, shutdown
from .errors import TorchError
from .hccl import backend, library
from .settings import Settings
from .variables import HCCL_LIBRARY, HOME, OPERATORS

_lock = threading.RLock()
_loading = False
_failure: Exception | None = None
# The variables that virtual-ascend sets for this process and its children.
_SET = ("PATH", HOME, OPERATORS, HCCL_LIBRARY)


def load() -> None:
    """Load virtual-ascend. Repeated calls do nothing. Loading virtual-ascend imports torch_npu, which calls this
    function again. The nested call returns immediately.

    Either everything or nothing is loaded. After a failure, `torch_npu` cannot be imported, and each further call
    raises the same error.

    Raises:
        VirtualAscendError: a required component is missing. The subclass shows which component.
        SettingError: an environment variable of virtual-ascend has an invalid value.
    """
    global _failure, _loading
    with _lock:
        if extension.is_loaded() or _loading:
            return
        if _failure is not None:
            raise _failure
        _loading = True
        before = {name: os.environ.get(name) for name in _SET}
        try:
            _load(Settings.read())
        except BaseException as error:
            _failure = error if isinstance(error, Exception) else None
            _withdraw(before)
            raise
        finally:
            _loading = False


def _load(settings: Settings) -> None:
    exposure.expose(first=settings.torch_npu == "ours")
    import torch

    _check_torch(torch)
    cann.install(settings.cache, os.environ, settings.cann_version, settings.driver_version)
    compiled = build.load(build.library(torch.__version__, settings.cache))
    hccl = library.library(settings.cache)
    library.load(hccl)
    os.environ.setdefault(HCCL_LIBRARY, str(hccl))
    compiled.configure(settings.devices)
    compiled.set_total_memory(int(settings.memory * (1 << 30)))
    compiled.set_phantom(int(settings.phantom * (1 << 20)))
    compiled.set_delayed_copies(settings.delayed_copies)
    compiled.set_graph_reporter(reporting.warn, settings.strict_graphs)
    faults.install(compiled, settings.faults)
    extension.hold(compiled)
    _register(torch)
    npu = sys.modules["torch_npu"]
    npu.__simulated__ = _described(settings)  # type: ignore[attr-defined]  # our own marks, on our own package
    npu.__captured__ = npu.npu.graphs.captured_tasks  # type: ignore[attr-defined]
    torch.version.cann = settings.cann_version  # as torch_npu sets it; `accelerate env` reads it


def _described(settings: Settings) -> str:
    least = f", PHANTOM: no values from {settings.phantom:g} MiB on" if settings.phantom else ""
    return f"virtual NPUs{least}"


def _withdraw(before: Mapping[str, str | None]) -> None:
    extension.hold(None)
    torch = sys.modules.get("torch")
    npu = sys.modules.pop("torch.npu", None)
    if npu is not None and getattr(torch, "npu", None) is npu:
        torch.version.__dict__.pop("cann", None)  # type: ignore[union-attr]  # as below
        del torch.npu  # type: ignore[union-attr]  # there is a torch if it has npu
    exposure.withdraw()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _register(torch: ModuleType) -> None:
    torch.utils.rename_privateuse1_backend("npu")
    npu = importlib.import_module("torch_npu.npu")
    torch._register_device_module("npu", npu)
    # importlib finds `torch.npu` by this name, as it does on a real NPU.
    sys.modules.setdefault("torch.npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    backend.register(torch)
    importlib.import_module("torch_npu")
    shutdown.install()


def _check_torch(torch: ModuleType) -> None:
    name = variables.NPUS.name
    if sys.platform != "linux":
        raise TorchError(subject="virtual-ascend", expected="Linux", found=sys.platform, fix=f"unset {name}")
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "npu"):
        raise TorchError(
            subject="torch's device for other backends (PrivateUse1)",
            found=f"the backend {taken!r} already uses this device",
            fix=f"unset {name}, or uninstall that backend",
        )
    if hasattr(torch, "npu"):
        raise TorchError(
            subject="torch.npu",
            found="another package has already registered the device npu",
            fix=f"unset {name}, or uninstall that package",
        )
