"""Graphs. A capture records operations with their addresses, and a replay runs them again on the data at these
addresses.

See device/csrc/graph.h, and docs/virtual-npus.md for the checks.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from virtual_ascend.device.extension import extension
from virtual_ascend.operators import captures

from torch_npu._unimplemented import is_older_than
from torch_npu.npu.device import synchronize
from torch_npu.npu.streams import ExternalEvent, Stream, _place, current_stream, stream

if TYPE_CHECKING:
    from virtual_ascend.device.extension import Group, Tasks

Pool = tuple[int, int]
"""The number of a memory pool: in the first place if a capture made it, in the second if `graph_pool_handle` did."""

_C = extension()
# The operators that torch_npu makes updatable by itself (torch_npu/npu/graphs.py).
_UPDATED = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")


def graph_pool_handle() -> Pool:
    """Return the number of a new memory pool that graphs can share."""
    pool: Pool = _C.new_graph_pool()
    return pool


def graph_task_group_begin(stream: torch.Stream) -> None:
    """Begin a group of tasks on a stream. The arguments of its tasks can be changed later."""
    _C.begin_task_group(*_place(stream))


def graph_task_group_end(stream: torch.Stream) -> Group:
    """End the group, and return it."""
    return _C.end_task_group(*_place(stream))


def graph_task_update_begin(stream: torch.Stream, handle: Group) -> None:
    """Begin an update of a group on a stream. The calls that follow replace the tasks of the group instead of being
    executed."""
    device, number = _place(stream)
    _C.begin_task_update(device, number, handle)
    captures.begin()


def graph_task_update_end(stream: torch.Stream) -> None:
    """End the update of a group.

    Raises:
        RuntimeError: the calls do not match the tasks of the group.
    """
    captures.end()
    _C.end_task_update(*_place(stream))


@dataclass(slots=True)
class _Updated:
    """A call that `NPUGraph.update` changes."""

    call: captures.Call
    group: Group
    event: ExternalEvent


def captured_tasks() -> list[Tasks]:
    """Return the tasks of each graph of this process. A real NPU does not show the tasks of its graphs."""
    return [graph._graph.tasks() for graph in _graphs]


class NPUGraph:
    """A graph of one NPU."""

    _update_stream: Stream | None = None

    def __init__(self) -> None:
        self._graph = _C.Graph()
        _graphs.add(self)
        self.auto_dispatch_capture = False
        self._updated: list[_Updated] = []

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        """Start capturing the operations on the current stream. The context manager `graph` calls this method."""
        self._graph.capture_begin((0, 0) if pool is None else pool, capture_error_mode)
        captures.begin()
        captures.follow(self._follow if self.auto_dispatch_capture else None)

    def capture_end(self) -> None:
        """End the capture."""
        captures.follow(None)
        captures.end()
        self._graph.capture_end()

    def replay(self) -> None:
        """Run the captured operations again, on the data at the same addresses.

        Raises:
            RuntimeError: nothing was captured, or a task fails.
        """
        self._graph.replay()

    def reset(self) -> None:
        """Delete the captured operations."""
        self._graph.reset()

    def pool(self) -> Pool:
        """Return the ID of the graph's memory pool."""
        pool: Pool = self._graph.pool()
        return pool

    def enable_debug_mode(self) -> None:
        """Do nothing: a dump is complete without debug mode."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the tasks as JSON: each operator with the addresses, shapes, and types of its tensors."""
        Path(debug_path).write_text(
            json.dumps(
                [
                    {"operator": name, "tensors": [dict(zip(_DUMPED, each, strict=True)) for each in tensors]}
                    for name, tensors in self._graph.tasks()
                ]
            )
        )

    def update(self, cpu_update_input: Sequence[Mapping[str, object]]) -> None:
        """Update the host-side arguments of the captured calls, with either one mapping for each call or a single
        mapping for all calls.

        Raises:
            RuntimeError: the capture did not set auto_dispatch_capture, or the number of mappings is neither 1 nor the
                number of calls.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "The current graph configuration does not support update,"
                "Try to capture by setting auto_dispatch_capture=True during capture"
            )
        given = list(cpu_update_input)
        if len(given) == 1:
            given *= len(self._updated)
        if len(given) != len(self._updated):
            raise RuntimeError(
                f"Currently, there are {len(self._updated)} operators that need to be updated by capture, and "
                f"there are only {len(given)} elements in the incoming cpu_update_input list"
            )
        update_stream = self._stream()
        with stream(update_stream):
            for updated, values in zip(self._updated, given, strict=True):
                updated.call.change(values)
                graph_task_update_begin(update_stream, updated.group)
                updated.call.add()
                graph_task_update_end(update_stream)
                updated.event.record(update_stream)

    @classmethod
    def _stream(cls) -> Stream:
        if NPUGraph._update_stream is None:
            NPUGraph._update_stream = Stream()
        return NPUGraph._update_stream

    def _follow(self, call: captures.Call, add: Callable[[], None]) -> None:
        if call.name.partition("::")[2] not in _UPDATED:
            return add()
        here, event = current_stream(), ExternalEvent()
        event.wait(here)
        event.reset(here)
        graph_task_group_begin(here)
        add()
        self._updated.append(_Updated(call, graph_task_group_end(here), event))
        return None


if is_older_than("2.5.1.post1"):
    del NPUGraph.update


_graphs: weakref.WeakSet[NPUGraph] = weakref.WeakSet()
_DUMPED = ("name", "address", "shape", "strides", "dtype")


class graph:
    """A context manager that captures the operations in its `with` block, by default on a new stream."""

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.capture_stream = stream if stream is not None else graph.default_capture_stream
        self.pool = pool
        self.npu_graph = npu_graph
        self.capture_error_mode = capture_error_mode
        self.npu_graph.auto_dispatch_capture = auto_dispatch_capture
        self.stream_ctx = _on(self.capture_stream)

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        torch.npu.empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.npu_graph.capture_end()
        finally:
            self.stream_ctx.__exit__(kind, value, trace)


def _on(capture_stream: torch.Stream | None) -> stream:
    return stream(capture_stream)
