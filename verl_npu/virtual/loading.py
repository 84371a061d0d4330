"""Brings the virtual Ascend up in one process, in the order that torch_npu has."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Any

from verl_npu.virtual import DEVICES, build, cann, exposure, faults, hccl, hccl_abi, shutdown
from verl_npu.virtual.errors import TorchError
from verl_npu.virtual.settings import Copies, Settings

_lock = threading.RLock()
_state: dict[str, Any] = {"extension": None, "loading": False}


def load() -> None:
    """Load once; a call from within a load (torch_npu imports us back) returns at once.

    Raises:
        VirtualError: see its subclasses.
    """
    with _lock:
        if _state["extension"] is not None or _state["loading"]:
            return
        _state["loading"] = True
        try:
            _load(Settings.read())
        finally:
            _state["loading"] = False


def is_loaded() -> bool:
    """Whether `load` has succeeded in this process."""
    return _state["extension"] is not None


def extension() -> ModuleType:
    """The compiled device of this process.

    Raises:
        TorchError: the virtual Ascend is not loaded.
    """
    module = _state["extension"]
    if module is None:
        raise TorchError(f"the virtual Ascend is not loaded in this process: set {DEVICES}=2 before `import torch`")
    return module  # type: ignore[no-any-return]


def _load(settings: Settings) -> None:
    exposure.expose()
    import torch

    _check_torch(torch)
    cann.install(settings.cache, os.environ, settings.cann_version, settings.driver_version)
    compiled = build.load(build.library(torch.__version__, settings.cache))
    os.environ.setdefault(hccl_abi.VARIABLE, str(hccl_abi.library(settings.cache)))
    compiled.configure(settings.devices)
    compiled.set_total_memory(int(settings.memory * (1 << 30)))
    compiled.set_delayed_copies(settings.copies is Copies.DELAYED)
    faults.install(compiled, settings.faults)
    _state["extension"] = compiled
    try:
        torch.utils.rename_privateuse1_backend("npu")
        npu = importlib.import_module("torch_npu.npu")
        torch._register_device_module("npu", npu)
        # importlib finds `torch.npu` by this name, as it does on a real NPU.
        sys.modules.setdefault("torch.npu", npu)
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
        )
        hccl.register(torch)
        importlib.import_module("torch_npu")
        shutdown.install()
    except BaseException:
        _state["extension"] = None
        raise


def _check_torch(torch: ModuleType) -> None:
    if sys.platform != "linux":
        raise TorchError(f"the virtual Ascend runs on Linux, found {sys.platform}")
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "npu"):
        raise TorchError(
            f"another backend holds torch's private device as {taken!r}: unset {DEVICES}, or uninstall that backend"
        )
    if hasattr(torch, "npu"):
        raise TorchError(f"torch.npu exists already: something else registered the device npu; unset {DEVICES}")
