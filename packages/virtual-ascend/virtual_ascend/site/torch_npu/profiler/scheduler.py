"""The schedule of recorded steps: torch_npu's classes, based on the schedule of torch.profiler."""

from __future__ import annotations

from enum import Enum

import torch.profiler

from torch_npu._unimplemented import is_older_than

__all__ = ["ProfilerAction", "schedule"]


class ProfilerAction(Enum):
    """What the profiler does in a step, such as warm up or record."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class _Schedule:
    """The action of each step."""

    def __init__(
        self, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
    ) -> None:
        # Older versions of torch do not have skip_first_wait.
        more = {"skip_first_wait": skip_first_wait} if skip_first_wait else {}
        self._action = torch.profiler.schedule(
            wait=wait, active=active, warmup=warmup, repeat=repeat, skip_first=skip_first, **more
        )

    def __call__(self, step: int) -> ProfilerAction:
        return ProfilerAction[self._action(step).name]


class _OlderSchedule(_Schedule):
    def __init__(self, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0) -> None:
        super().__init__(wait, active, warmup, repeat, skip_first)


schedule: type[_Schedule] = _OlderSchedule if is_older_than("2.13.0") else _Schedule
