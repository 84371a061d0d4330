"""The NPUs of this process, their properties, and the current NPU."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid5

import torch
from virtual_ascend import soc
from virtual_ascend.device.extension import extension

from torch_npu._unimplemented import not_implemented

if TYPE_CHECKING:
    Place: TypeAlias = int | str | torch.device | None
    """An NPU: its number, "npu:1", a torch.device, or None for the current NPU."""

_C = extension()


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The result of `get_device_properties`."""

    name: str
    total_memory: int
    uuid: UUID
    cube_core_num: int = soc.CUBE_CORES
    vector_core_num: int = soc.VECTOR_CORES
    L2_cache_size: int = soc.L2_CACHE
    multi_processor_count: int = soc.CUBE_CORES


def _get_device_index(device: Place = None, optional: bool = True, allow_cpu: bool = False) -> int:
    """Return the index of `device`: an int, "npu", "npu:1", a torch.device, or None for the current NPU.

    Raises:
        ValueError: `device` is another kind of device.
        RuntimeError: the NPU does not exist.
    """
    if device is None:
        if not optional:
            raise ValueError("expected an NPU with an index, such as npu:0; found None")
        return current_device()
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise ValueError(f"expected an NPU (int, str or torch.device); found {device!r}")
    if isinstance(device, int):
        index = current_device() if device == -1 else device
    else:
        parsed = torch.device(device)
        if parsed.type == "cpu" and allow_cpu:
            return -1
        if parsed.type != "npu":
            raise ValueError(f"Expected a npu device, but got: {parsed}")
        index = current_device() if parsed.index is None else int(parsed.index)
    _C.check_index(index)
    return index


def is_available() -> bool:
    """Return whether this process sees an NPU."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of NPUs that this process sees. It may change until an NPU is first used."""
    return int(_C.device_count())


def init() -> None:
    """Initialize the runtime. After this call, the set of visible NPUs is fixed.

    Raises:
        RuntimeError: no NPU is visible, or this process was forked from a process that used an NPU.
    """
    _C.init()


def is_initialized() -> bool:
    """Return whether this process has used an NPU."""
    return bool(_C.is_initialized())


_lazy_init = init


def _lazy_call(function: Callable[[], object], **_options: object) -> None:
    """Call the function immediately, because nothing has to be initialized first."""
    function()


def _is_in_bad_fork() -> bool:
    return bool(_C.is_in_bad_fork())


def current_device() -> int:
    """Return the index of the current NPU."""
    _C.init()
    return int(_C.current_device())


def set_device(device: Place) -> None:
    """Make an NPU the current device.

    Raises:
        RuntimeError: the NPU does not exist.
    """
    index = device if isinstance(device, int) and not isinstance(device, bool) else _get_device_index(device)
    if index >= 0:
        _C.set_device(index)


def exchange_device(device: int) -> int:
    """Make an NPU the current device, and return the index of the previous device. If `device` is negative, change
    nothing and return -1."""
    if device < 0:
        return -1
    return maybe_exchange_device(device)


def maybe_exchange_device(device: int) -> int:
    """Make an NPU the current device, and return the index of the previous device, as `exchange_device` does. If
    `device` is negative, change nothing and return the index of the current device."""
    previous = current_device()
    if device >= 0:
        _C.set_device(device)
    return previous


class device:
    """The context manager that implements `with torch.npu.device(1): ...`"""

    def __init__(self, device: Place) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = exchange_device(self.idx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        exchange_device(self.prev_idx)


class device_of(device):
    """A context manager that selects a tensor's NPU. It does nothing if the tensor is not on an NPU."""

    def __init__(self, obj: torch.Tensor) -> None:
        if obj.device.type == "npu":
            super().__init__(obj.device)
        else:
            self.idx = self.prev_idx = -1


def synchronize(device: Place = None) -> None:
    """Wait for the NPU's pending non-blocking copies. All other work of a virtual NPU has already finished."""
    _C.synchronize_device(_get_device_index(device))


def get_device_name(device_name: Place = None) -> str:
    """Return the name of an NPU, for example "Ascend910B2 (virtual)"."""
    _get_device_index(device_name)
    return f"{soc.NAME} (virtual)"


def get_device_properties(device_name: Place = None) -> DeviceProperties:
    """Return the name, memory, and cores of an NPU."""
    index = _get_device_index(device_name)
    return DeviceProperties(
        name=get_device_name(index),
        total_memory=int(_C.total_memory()),
        uuid=uuid5(NAMESPACE_URL, f"virtual-ascend:{platform.node()}:{_C.visible_devices()[index]}"),
    )


def get_device_capability(device: Place = None) -> None:
    """Return None, as torch_npu does: NPUs have no compute capability."""
    _get_device_index(device)


def get_soc_version() -> int:
    """Return torch_npu's number for the chip model."""
    return soc.VERSION


def is_bf16_supported() -> bool:
    """Return True, because an Ascend 910B supports bfloat16."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that torch.autocast("npu") can cast to."""
    return [torch.float16, torch.bfloat16, torch.float32]


def can_device_access_peer(device_id: Place, peer_device_id: Place) -> bool:
    """Return whether an NPU can access the memory of another NPU. The result is True for each pair of different NPUs.

    Raises:
        AssertionError: an NPU does not exist.
    """
    indices = []
    for which, asked in (("device", device_id), ("peer device", peer_device_id)):
        index = asked if isinstance(asked, int) else _get_device_index(asked)
        if not 0 <= index < device_count():
            raise AssertionError(f"Invalid {which} id: {index}")
        indices.append(index)
    return indices[0] != indices[1]


utilization = not_implemented("torch_npu.npu.utilization")
init_dump = not_implemented("torch_npu.npu.init_dump")
set_dump = not_implemented("torch_npu.npu.set_dump")
finalize_dump = not_implemented("torch_npu.npu.finalize_dump")
