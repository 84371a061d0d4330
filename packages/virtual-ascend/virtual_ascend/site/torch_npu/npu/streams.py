"""Streams and events. Every operation has finished when its call returns.

A stream has only an identity and a queue of delayed copies (VIRTUAL_ASCEND_COPIES). An event has the time at which it
was recorded, and the copies that were queued at that time.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from virtual_ascend.device.extension import extension

from torch_npu._unimplemented import Absent, is_older_than
from torch_npu.npu.device import _get_device_index, current_device, exchange_device

if TYPE_CHECKING:
    from torch_npu.npu.device import Place

_C = extension()
_C.refuse_streams_of_torch(is_older_than("2.7.1"))
_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)


class Stream(torch.Stream):  # type: ignore[misc]
    """A stream of one NPU. If no identity is passed, a new stream is created."""

    def __new__(cls, device: Place = None, priority: int = 0, **identity: int) -> Stream:
        if identity:
            if identity.get("device_type") != _DEVICE_TYPE:
                raise RuntimeError(
                    f"expected an NPU stream (device type {_DEVICE_TYPE}); found device type "
                    f"{identity.get('device_type')}"
                )
            _C.check_index(identity.get("device_index", -1))
            existing: Stream = super().__new__(cls, priority=priority, **identity)
            return existing
        index = _get_device_index(device)
        fresh: Stream = super().__new__(
            cls,
            stream_id=_C.new_stream_id(index),
            device_index=index,
            device_type=_DEVICE_TYPE,
            priority=priority,
        )
        return fresh

    @property
    def npu_stream(self) -> int:
        """The stream's handle; 0 is the default stream."""
        return int(self.stream_id)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event on this stream, and return it. By default, record a new event."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream device={self.device} npu_stream={self.npu_stream:#x}>"


class Event(torch.Event):  # type: ignore[misc]
    """A point in time on an NPU."""

    # torch.Event.elapsed_time rejects a subclass of torch.Event as the end, so the time is kept here.
    _timed: bool
    _recorded_at: int | None

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError("virtual-ascend does not implement torch_npu.npu.Event(interprocess=True)")
        event: Event = super().__new__(
            cls, device=torch.device("npu", current_device()), enable_timing=enable_timing, blocking=blocking
        )
        event._timed = enable_timing
        event._recorded_at = None
        return event

    # torch.Event has these in every version, but the wheels' own class does not.
    if is_older_than("2.13.0"):
        event_id = Absent()
    if is_older_than("2.10.0"):
        from_ipc_handle = Absent()
        ipc_handle = Absent()

    def __repr__(self) -> str:
        name = super().event_id
        return f"<torch_npu.npu.Event {name:#x}>" if name else "<torch_npu.npu.Event uninitialized>"

    def record(self, stream: torch.Stream | None = None) -> None:
        """Record the event immediately."""
        super().record(current_stream() if stream is None else stream)
        self._recorded_at = time.perf_counter_ns()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make `stream` wait for this event. By default, the current stream waits."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another.

        Raises:
            RuntimeError: one of the events was not recorded, or was created without enable_timing.
        """
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'")
        if self._recorded_at is None or end_event._recorded_at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time")
        return (end_event._recorded_at - self._recorded_at) / 1e6


class StreamContext:
    """A context manager that makes a stream the current stream, and the stream's NPU the current device. With None, it
    changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, int, int]] = []

    def __enter__(self) -> StreamContext:
        if self.stream is not None:
            index = self.stream.device.index
            self._previous.append((exchange_device(index), index, _C.current_stream_id(index)))
            _C.set_stream_id(index, self.stream.stream_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            device, index, stream_id = self._previous.pop()
            _C.set_stream_id(index, stream_id)
            exchange_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return the context manager that implements `with torch.npu.stream(s): ...`"""
    return StreamContext(stream)


def current_stream(device: Place = None) -> Stream:
    """Return the current stream of an NPU."""
    index = _get_device_index(device)
    return _existing(_C.current_stream_id(index), index)


class ExternalEvent:
    """An event that synchronizes a graph with work outside the graph. A stream can wait for the event before the event
    is recorded."""

    def __init__(self) -> None:
        self._event = _C.ExternalEvent()

    def record(self, stream: torch.Stream | None = None) -> None:
        """Record the event. Recording releases a replay that is waiting for the event."""
        self._event.record(*_place(stream))

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make a stream wait for the event.

        Raises:
            RuntimeError: no graph is being captured, and the event has not been recorded.
        """
        self._event.wait(*_place(stream))

    def reset(self, stream: torch.Stream | None = None) -> None:
        """Reset the event, so that it can be waited for again."""
        self._event.reset(*_place(stream))


def _place(stream: torch.Stream | None) -> tuple[int, int]:
    stream = current_stream() if stream is None else stream
    return stream.device.index, stream.stream_id


def is_current_stream_capturing() -> bool:
    """Return whether the current stream is being captured into a graph."""
    return bool(_C.is_initialized() and _C.is_capturing(current_device()))


def default_stream(device: Place = None) -> Stream:
    """Return the default stream of an NPU."""
    return _existing(0, _get_device_index(device))


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream the current stream of its NPU. With None, change nothing."""
    if stream is not None:
        _C.set_stream_id(stream.device.index, stream.stream_id)


def erase_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Undo `tensor.record_stream(stream)`. This has no effect, because memory is always freed together with its last
    tensor.

    Raises:
        RuntimeError: the tensor is not on an NPU.
    """
    if tensor.device.type != "npu":
        raise RuntimeError(f"erase_stream: expected a tensor on an NPU; found one on {tensor.device}")


def _existing(stream_id: int, index: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)
