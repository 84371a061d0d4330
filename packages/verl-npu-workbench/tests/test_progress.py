from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import pytest

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.progress import Step

PATIENCE = 30.0


class Screen(io.StringIO):
    """A terminal that keeps everything it was sent."""

    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERY", "_FIRST", "_REWRITE_EVERY"):
        monkeypatch.setattr(progress, name, 0.01)


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_pipe_gets_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with progress.shown(), progress.step("reading a log"):
        until(lambda: pipe.getvalue().count("\n") > 1)
    assert {line.rpartition(",")[0] for line in pipe.getvalue().splitlines()} == {"verl-npu: reading a log"}


def test_a_terminal_has_one_line_that_is_gone_before_others_print(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with progress.shown(), progress.step("reading a log"):
        until(lambda: "reading a log" in screen.getvalue())
        with progress.suspended():
            assert screen.getvalue().endswith("\r\x1b[K")
        until(lambda: not screen.getvalue().endswith("\r\x1b[K"))
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_a_command_that_prints_has_the_line_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(terminal.click, "echo", lambda *_, **__: screen.write("<a line>"))
    with progress.shown(), progress.step("reading a log"):
        until(lambda: "reading a log" in screen.getvalue())
        terminal.echo("a line")
    assert screen.getvalue().partition("<a line>")[0].endswith("\r\x1b[K")


def test_each_thread_has_its_innermost_step_said() -> None:
    ready, ended = threading.Event(), threading.Event()

    def rank() -> None:
        with progress.step("rank 8"):
            ready.set()
            ended.wait(PATIENCE)

    thread = threading.Thread(target=rank)
    with progress.step("plan"), progress.step("rank 0"):
        thread.start()
        ready.wait(PATIENCE)
        said = progress.now()
        ended.set()
        thread.join()
    assert [each.partition(",")[0] for each in said.split("; ")] == ["rank 0", "rank 8"]
    assert progress.now() == ""


def test_what_is_left_is_estimated_by_what_was_done() -> None:
    step = Step("reading a log", 400.0, measure=lambda: 100.0, began=time.monotonic() - 30)
    assert step.text() == "reading a log, 25%, 30 s, about 90 s more"


def test_what_an_earlier_run_did_says_nothing_of_the_speed() -> None:
    step = Step("asking", unit="answers", began=time.monotonic() - 30)
    step.total, step.done = 100.0, 80.0
    assert step.text() == "asking, 80 of 100 answers, 30 s"
    step.done = 90.0
    assert step.text() == "asking, 90 of 100 answers, 30 s, about 30 s more"


def test_a_strangers_text_commands_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with progress.shown(), progress.step("waiting") as step:
        step.detail = "\x1b]0;title\x07"
        until(lambda: "title" in pipe.getvalue())
    assert "\x1b" not in pipe.getvalue()


def test_a_closed_stderr_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Closed())
    with progress.shown(), progress.step("reading a log"):
        until(lambda: not [each for each in threading.enumerate() if each.name == "progress"])
