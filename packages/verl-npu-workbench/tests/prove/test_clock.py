"""The clock does not count the time that processes wait for a processor, and counts all other time."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from verl_npu_workbench.prove import clock
from verl_npu_workbench.prove.clock import MOST, Clock

_CROWDED = """
import json, os, subprocess, sys, time
from verl_npu_workbench.prove.clock import Clock
# All of them share one processor.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with Clock() as clock:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _number in range(3)]
    time.sleep(4)
    print(json.dumps([clock.now(), clock.wall]))
    for each in busy:
        each.kill()
        each.wait()
"""


def seconds(nanoseconds: float) -> int:
    return int(nanoseconds * 1e9)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Return the run and wait times of threads, which a test may change between looks."""
    threads: dict[str, tuple[int, int]] = {"1": (seconds(5), seconds(5))}
    monkeypatch.setattr(clock, "_threads", lambda: iter(threads.items()))
    return threads


def after(counted: Clock, passed: float) -> Clock:
    """Make a clock look once more, as if time had passed."""
    counted._began -= passed
    counted._looked -= passed
    counted._worked_at -= passed
    counted._look()
    return counted


def test_three_processes_on_one_processor_wait_for_it_a_good_part_of_the_time() -> None:
    done = subprocess.run([sys.executable, "-c", _CROWDED], capture_output=True, text=True, check=True)
    counted, wall = json.loads(done.stdout)
    assert counted < 0.8 * wall


def test_time_in_which_nothing_is_done_counts() -> None:
    with Clock() as counted:
        time.sleep(1.2)
        assert counted.now() == pytest.approx(counted.wall, abs=0.2)


def test_of_the_time_in_which_a_thread_could_run_the_part_that_it_did_not_is_left_out(
    looks: dict[str, tuple[int, int]],
) -> None:
    counted = Clock()
    looks["1"] = (seconds(6), seconds(6))
    assert after(counted, 10).now() == pytest.approx(9, abs=0.1)
    looks["2"] = (seconds(2), seconds(14))
    assert after(counted, 8).now() == pytest.approx(10, abs=0.1)


def test_however_busy_the_machine_is_a_part_of_the_time_counts(looks: dict[str, tuple[int, int]]) -> None:
    counted = Clock()
    looks["1"] = (seconds(5.1), seconds(24))
    assert after(counted, 20).is_too_busy
    assert counted.now() == pytest.approx(20 / MOST, abs=0.1)


def test_processes_that_do_nothing_are_told_from_those_that_work(looks: dict[str, tuple[int, int]]) -> None:
    counted = after(Clock(), 30)
    assert counted.idle == pytest.approx(30, abs=1)
    looks["1"] = (seconds(15), seconds(5))
    assert after(counted, 10).idle < 1
