"""Run a verl trainer as `python -m` does, to the point where Ray has placed its NPUs.

Upstream's code, verl-npu's and Ray run as they are, with two differences: the task runner's `run` is called in this
process and not in an actor, and once the workers' NPUs are placed the process ends with PLACED in its output.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any  # Ray's actors have no types.

PLACED = "the NPUs of the workers are placed"


class _Actor:
    """A stand-in for Ray's handle of an actor, and for its only method."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.run = self

    def remote(self, config: Any) -> Any:
        import ray

        _end_when_placed()
        return ray.put(self._runner.run(config))


class _ActorClass:
    """A stand-in for a class that Ray has made an actor class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def remote(self) -> _Actor:
        return _Actor(self._kind())


def _end_when_placed() -> None:
    from verl.single_controller.ray.base import RayResourcePool

    place = RayResourcePool.get_placement_groups

    def and_end(*given: Any, **named: Any) -> None:
        place(*given, **named)
        print(PLACED, flush=True)
        sys.exit(0)

    RayResourcePool.get_placement_groups = and_end


def main() -> None:
    import ray

    remote = ray.remote

    def of_workers_alone(*given: Any, **named: Any) -> Any:
        made = remote(*given, **named)
        return made if given else lambda kind: _ActorClass(kind) if kind.__name__ == "TaskRunner" else made(kind)

    ray.remote = of_workers_alone
    sys.argv = sys.argv[2:]  # without the -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
