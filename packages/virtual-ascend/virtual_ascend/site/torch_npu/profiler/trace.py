"""A profiler that records nothing, reports this, and writes a Chrome trace without events for tools to read.

Its folders are torch_npu's: `<worker>_<time>_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from torch_npu._unimplemented import not_implemented
from torch_npu.profiler.options import ProfilerActivity
from torch_npu.profiler.scheduler import ProfilerAction

NOTE = "SIMULATED (virtual Ascend): nothing was recorded; torch.profiler measures the CPU"


def _write(path: Path, metadata: dict[str, object]) -> None:
    # A metadata event (ph "M") names the process, and takes no time.
    event = {"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0, "args": {"name": NOTE, **metadata}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([event]))
    print(f"virtual-ascend: {path}: {NOTE}", file=sys.stderr)


def tensorboard_trace_handler(
    dir_name: str | None = None, worker_name: str | None = None, analyse_flag: bool = True, async_mode: bool = False
) -> Callable[[_KinetoProfile], None]:
    """Return a function for `on_trace_ready`. The function writes an empty trace below `dir_name` (by default, the
    current folder)."""

    def write(profiler: _KinetoProfile) -> None:
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        stamp = time.strftime("%Y%m%d%H%M%S") + f"{time.time_ns() // 1000 % 1000000:06d}"
        folder = Path(dir_name or os.getcwd()) / f"{worker}_{stamp}_ascend_pt"
        if analyse_flag:
            _write(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", profiler.metadata)
        else:  # a real profiler would analyse this later
            _write(folder / "profiler_metadata.json", profiler.metadata)

    return write


class _KinetoProfile:
    """A profiler without a schedule."""

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: object = None,
    ) -> None:
        self.metadata: dict[str, object] = {}

    def start(self) -> None:
        """Do nothing, because this profiler never records events."""

    def stop(self) -> None:
        """Do nothing, because this profiler never records events."""

    def add_metadata(self, key: str, value: str) -> None:
        """Add a string to the trace."""
        self.metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace."""
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, output_path: str) -> None:
        """Write an empty trace, because nothing is recorded.

        Raises:
            RuntimeError: the path does not end in .json.
        """
        if not output_path.endswith(".json"):
            raise RuntimeError("Invalid parameter output_path, which must be a json file.")
        _write(Path(output_path), self.metadata)

    export_stacks = not_implemented("torch_npu.profiler.profile.export_stacks")
    export_memory_timeline = not_implemented("torch_npu.profiler.profile.export_memory_timeline")


class profile(_KinetoProfile):
    """A profiler with a schedule: `with profile(...) as p: ...; p.step()`.

    It calls `on_trace_ready` at the end of each recording window of the schedule.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: object = None,
        use_cuda: bool | None = None,
    ) -> None:
        super().__init__()
        self.step_num = 0
        self.on_trace_ready = on_trace_ready
        self._schedule = schedule or (lambda _step: ProfilerAction.RECORD)
        self.current_action = self._schedule(0)
        self._running = False

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the schedule."""
        self._running = True

    def step(self) -> None:
        """Go to the next step of the schedule."""
        if not self._running:
            return
        if self.current_action is ProfilerAction.RECORD_AND_SAVE:
            self._ready()
        self.step_num += 1
        self.current_action = self._schedule(self.step_num)

    def stop(self) -> None:
        """End the schedule, and save the recording in progress, if there is one."""
        if self._running and self.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE):
            self._ready()
        self._running = False

    def _ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)
