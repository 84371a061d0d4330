from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.ending import Ending, Standing, duration, ending_of
from verl_npu_workbench.logs.training import follow, whole

from tests.logs.conftest import line

HEAD = "(TaskRunner pid=7) Total training steps: 40\n"
ERROR = (
    "(WorkerDict pid=4711, ip=10.0.0.2) Traceback (most recent call last):\n"
    '(WorkerDict pid=4711, ip=10.0.0.2)   File "/opt/verl/a.py", line 1, in f\n'
    "(WorkerDict pid=4711, ip=10.0.0.2) RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB\n"
)
Ends = Callable[..., Ending]


def steps(last: int) -> str:
    return "".join(line(step, {"timing_s/step": 90.0 if step == 1 else 30.0}) for step in range(1, last + 1))


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    def write(text: str, ago: float = 0.0) -> Ending:
        path = tmp_path / "train.log"
        path.write_text(text)
        os.utime(path, (time.time() - ago, time.time() - ago))
        follower = follow(path)
        return ending_of(follower, whole(follower))

    return write


def test_a_log_that_just_ends_says_where_and_when(ends: Ends) -> None:
    found = ends(HEAD + steps(11), ago=7200)
    assert (found.standing, found.odd) == (Standing.STOPPED, True)
    assert "after step 11 of 40 without finishing: the last line was written 2.0 h ago" in found.text()


def test_an_error_at_the_end_is_named_with_its_process(ends: Ends) -> None:
    found = ends(HEAD + steps(11) + ERROR)
    assert (found.standing, found.odd) == (Standing.FAILED, True)
    assert "npu-memory, in WorkerDict (pid 4711, host 10.0.0.2)" in found.text()


def test_a_training_that_came_to_its_end_is_calm(ends: Ends) -> None:
    found = ends(HEAD + steps(40))
    assert (found.standing, found.odd) == (Standing.ENDED, False)


def test_an_error_that_the_training_got_over_is_calm(ends: Ends) -> None:
    assert not ends(HEAD + steps(11) + ERROR + steps(40)).odd


def test_a_log_without_the_number_of_steps_is_not_called_stopped(ends: Ends) -> None:
    found = ends(steps(11))
    assert (found.standing, found.odd, found.text()) == (Standing.UNKNOWN, False, "")


def test_a_file_loggers_log_says_nothing_of_its_end(ends: Ends) -> None:
    assert ends('{"step": 1, "data": {"timing_s/step": 3.0}}\n').standing is Standing.UNKNOWN


def test_a_running_training_tells_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as stream:
        stream.write(HEAD + steps(11))
        stream.flush()
        follower = follow(path)
        found = ending_of(follower, whole(follower))
    assert (found.standing, found.left) == (Standing.RUNS, 29 * 30.0)
    assert found.text() == "step 11 of 40, about 14 min to go"


@pytest.mark.parametrize(
    ("seconds", "text"), [(5.2, "5 s"), (600, "10 min"), (3 * 3600, "3.0 h"), (5 * 86400, "5.0 days")]
)
def test_a_span_of_time_is_said_as_a_person_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
