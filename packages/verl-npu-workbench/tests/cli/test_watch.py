from __future__ import annotations

import fcntl
import importlib
import json
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from verl_npu_workbench.logs.training import follow

from tests.logs.conftest import Write, line, write

from .conftest import Run

__all__ = ["write"]  # a fixture

PROJECT = Path(__file__).resolve().parents[4]
STEPS = {
    step: {
        "critic/rewards/mean": step / 20,
        "actor/entropy": 2.0 - step / 20,
        "timing_s/step": 10.0,
        "timing_s/gen": 6.0,
        "perf/total_num_tokens": 5000,
    }
    for step in range(1, 11)
}
ODD = {**STEPS, 11: {**STEPS[10], "actor/grad_norm": math.nan}}


def text(steps: dict[int, dict[str, float]]) -> str:
    return "".join(line(step, metrics) for step, metrics in steps.items())


# Once.


@pytest.mark.parametrize("columns", [20, 80, 250])
def test_once_fits_the_terminal(run: Run, write: Write, columns: int) -> None:
    pytest.importorskip("plotext")
    status, output = run("watch", "--once", str(write(ODD)), columns=columns)
    assert status == 1
    said = " ".join(output.split())
    assert "not-a-number, step 11: actor/grad_norm is NaN or infinite at step 11" in said
    assert "500 tokens/s" in said
    assert max(map(len, output.splitlines())) <= max(columns, 40)


def test_once_a_sound_training_is_status_0(run: Run, write: Write) -> None:
    pytest.importorskip("plotext")
    status, output = run("watch", "--once", str(write(STEPS)))
    assert (status, "nothing odd" in output) == (0, True)


def test_once_as_json(run: Run, write: Write) -> None:
    status, output = run("watch", "--once", "--json", str(write(ODD)))
    told = json.loads(output, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert status == 1
    assert (told["step"], told["seconds"], told["tokens_per_second"]) == (11, 10.0, 500.0)
    assert told["phases"][0] == {"name": "gen", "seconds": 6.0, "usual": 6.0}
    assert [odd["kind"] for odd in told["odd"]] == ["not-a-number"]


ASYNCHRONOUS = "  'trainer_mode': 'separate_async'},\n" + text(
    {
        step: each
        | {"training/off_policy/trajectory_spans/max": 2.0, "training/off_policy/trajectory_staleness/mean": 1.5}
        for step, each in STEPS.items()
    }
)


def test_an_asynchronous_training_is_told_which_side_waits(run: Run, write: Write) -> None:
    log = str(write(ASYNCHRONOUS))
    told = json.loads(run("watch", "--once", "--json", log)[1])
    assert (told["waiting"]["trainer"], told["waiting"]["servers"]) == (0.6, None)
    assert told["metrics"]["versions in one answer"] == 2.0
    status, output = run("watch", "--once", log, columns=200)
    said = " ".join(output.split())
    assert status == 0
    assert "the trainer waits for answers for 60% of a step: give the servers more NPUs" in said
    assert "versions behind 1.5" in said


def test_once_a_log_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    status, output = run("watch", "--once", str(tmp_path / "none.log"))
    assert (status, len(output.splitlines())) == (2, 1)
    assert "found no such file" in output


def test_once_a_log_without_a_step_is_one_line(run: Run, write: Write) -> None:
    status, output = run("watch", "--once", str(write("Training Progress: 0%\n")))
    assert (status, len(output.splitlines())) == (2, 1)
    assert "found a file without a step" in output
    assert "wait for the first step" in output


def test_on_a_terminal_without_rich_it_is_said_what_to_install(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = str(write(STEPS))
    monkeypatch.setattr("verl_npu_workbench.extras.importlib.util.find_spec", lambda package: None)
    monkeypatch.setattr(sys.modules["verl_npu_workbench.cli.watch"], "_is_screen", lambda: True)
    status, output = run("watch", log)
    assert (status, len(output.splitlines())) == (2, 1)
    assert "pip install 'verl-npu-workbench[report]'" in output


# Following.

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(heeds_ctrl_c: None) -> Iterator[Start]:
    """Return a function that starts the command as a process of its own; end the process afterwards."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **options: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TERM": "xterm", "PYTHONUTF8": "1"}
        environment.pop("COLUMNS", None)
        command = [sys.executable, "-m", "verl_npu", "watch", "--every", "0.05", *arguments]
        process = subprocess.Popen(command, env=environment, text=True, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def without_progress(said: str) -> list[str]:
    """Return the lines without the progress lines that a slow machine prints."""
    return [line for line in said.splitlines() if not re.search(r", \d+ s$", line)]


def append(path: Path, steps: dict[int, dict[str, float]]) -> None:
    with path.open("a") as file:
        file.write(text(steps))


def test_a_pipe_gets_a_line_for_each_step_of_a_log_that_is_not_there_yet(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    process = start(str(log), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    while (said := process.stderr.readline()) != f"waiting for {log}\n":
        assert without_progress(said) == []
    append(log, {1: STEPS[1]})
    assert process.stdout.readline() == "step 1, reward 0.05, 10 s (gen 6, the rest 4), 500 tokens/s\n"
    append(log, {2: {**STEPS[2], "actor/grad_norm": math.inf}})
    assert process.stdout.readline().startswith("step 2, reward 0.1,")
    assert process.stdout.readline() == "not-a-number, step 2: actor/grad_norm is NaN or infinite at step 2\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stdout.read() == ""
    assert without_progress(process.stderr.read()) == ["verl-npu: ended by Ctrl-C"]


def test_a_pipe_gets_json_if_asked(start: Start, write: Write) -> None:
    process = start(str(write(STEPS)), "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["step"] == 10
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


def seen(descriptor: int, until: str, seconds: float = 20.0) -> str:
    """Return the output of a terminal up to a text."""
    got = b""
    end = time.monotonic() + seconds
    while until not in got.decode(errors="replace"):
        assert time.monotonic() < end, f"no {until!r} in {got.decode(errors='replace')[-2000:]!r}"
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                got += os.read(descriptor, 65536)
            except OSError:
                # The other end is closed.
                break
    return got.decode(errors="replace")


@pytest.mark.parametrize(("columns", "rows"), [(120, 50), (30, 10)])
def test_a_terminal_shows_the_state_until_ctrl_c(start: Start, write: Write, columns: int, rows: int) -> None:
    pytest.importorskip("plotext")
    log = write(STEPS)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = start(str(log), stdin=its, stdout=its, stderr=its)
    os.close(its)
    try:
        seen(ours, "step 10")
        append(log, {11: STEPS[10]})
        shown = seen(ours, "step 11")
        assert "Traceback" not in shown
        process.send_signal(signal.SIGINT)
        rest = seen(ours, "nothing odd")
        assert process.wait(20) == 130
        assert "Traceback" not in rest
    finally:
        os.close(ours)


def test_once_needs_no_package_of_a_screen_in_a_pipe(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "plotext", None)
    status, output = run("watch", "--once", str(write(STEPS)))
    assert status == 0
    assert "step" in output


# The end of `watch`.

HEAD = "(TaskRunner pid=12) Total training steps: 10\n"


@pytest.mark.parametrize(
    ("steps", "status", "said"),
    [(STEPS, 0, "the training finished, step 10 of 10"), (ODD, 1, "not-a-number, step 11")],
)
def test_in_a_pipe_a_finished_log_is_told_and_is_the_end(
    start: Start, write: Write, steps: dict[int, dict[str, float]], status: int, said: str
) -> None:
    log = write(HEAD + text(steps))
    os.utime(log, (time.time() - 3600, time.time() - 3600))
    process = start(str(log), stdout=subprocess.PIPE)
    output, _unused = process.communicate(timeout=60)
    assert process.returncode == status
    assert said in output


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_is_set_ends_no_training(write: Write, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    watch = importlib.import_module("verl_npu_workbench.cli.watch")
    monkeypatch.setattr(watch, "_QUIET", 0.0)
    log = write(HEAD.replace("10", "40") + text(STEPS))
    states = watch._states(follow(log), 0.01)
    next(states)
    append(log, {11: STEPS[10]})
    while (state := next(states)) is None or state.step != 11:
        pass
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
    assert not [state for state in islice(states, 10) if state and state.ending and state.ending.over]


@pytest.mark.parametrize("options", [("--once",), ("--json",)])
def test_what_is_piped_to_it_is_followed_to_its_end(start: Start, options: tuple[str, ...]) -> None:
    process = start(*options, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _unused = process.communicate(HEAD + text(STEPS), timeout=60)
    assert process.returncode == 0
    assert '"step": 10' in output if options == ("--json",) else "step 10" in output


def test_what_is_piped_without_a_step_cannot_be_judged(start: Start) -> None:
    process = start("-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _unused, said = process.communicate("nothing\n", timeout=60)
    assert process.returncode == 2
    assert "found a file without a step" in said


def test_it_ends_when_nobody_reads_it_any_more(start: Start, write: Write) -> None:
    process = start(str(write(HEAD + text({1: STEPS[1]}))), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
