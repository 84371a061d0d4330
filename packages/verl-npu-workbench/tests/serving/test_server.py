"""A server is waited for, and ended with all that it started; why it did not come up is said in one line."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testing.processes import gone, runs
from verl_npu_workbench.serving import server
from verl_npu_workbench.serving.launch import Engine, Launch
from verl_npu_workbench.serving.server import started, tail

from verl_npu.errors import ServingError

Make = Callable[..., Launch]
SERVING = """
import sys, time
from pathlib import Path
from verl_npu_workbench.serving import server
from verl_npu_workbench.serving.launch import Engine, Launch
server.PATIENCE = 0.2
made = Launch(sys.argv[1], Engine.CPU, "127.0.0.1", int(sys.argv[2]), "small", 1, "auto", None, ("--do", "stubborn"))
with server.started(made, Path(sys.argv[3])) as running:
    running.wait_until_it_answers(60, lambda passed, last: None)
    print("serving", flush=True)
    time.sleep(600)
"""
SILENT: Callable[[float, str], None] = lambda passed, last: None  # noqa: E731


@pytest.fixture
def make(vllm: Path, model: Path) -> Make:
    """A launch on a free port."""

    def call(do: str) -> Launch:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return Launch(str(model), Engine.CPU, "127.0.0.1", port, "small", 1, "auto", None, ("--do", do))

    return call


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def child_of(log: Path) -> int:
    """The process that the server has started."""
    return number_in(log, "CHILD")


def server_of(log: Path) -> int:
    """The server itself."""
    return number_in(log, "SERVER")


def number_in(log: Path, word: str) -> int:
    return next(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(word))


def test_it_is_waited_for_and_ended_with_its_children_and_no_others(
    make: Make, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    log = tmp_path / "logs" / "serve.log"
    with started(make("serve"), log) as running:
        running.wait_until_it_answers(60, SILENT)
        child = child_of(log)
        assert runs(child)
    assert gone(running.process.pid)
    assert gone(child)
    assert bystander.poll() is None


def test_it_ends_with_all_its_children_when_we_are_killed(
    make: Make, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    log, made = tmp_path / "serve.log", make("stubborn")
    command = [sys.executable, "-c", SERVING, made.model, str(made.port), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "serving\n"
        pids = (child_of(log), server_of(log))
        assert all(runs(pid) for pid in pids)
        serving.kill()
    assert [pid for pid in pids if not gone(pid, within=10)] == []
    assert bystander.poll() is None


def test_one_that_does_not_end_by_itself_is_killed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with started(make("stubborn"), tmp_path / "serve.log") as running:
        running.wait_until_it_answers(60, SILENT)
    assert gone(running.process.pid)
    assert gone(child_of(tmp_path / "serve.log"))


def test_one_that_dies_is_an_error_with_its_cause_and_not_with_a_warning(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with (
        pytest.raises(
            ServingError, match=r"found status 1 after \d+ s: ValueError: the weights do not fit;"
        ) as caught,
        started(make("fail"), log) as running,
    ):
        running.wait_until_it_answers(60, SILENT)
    assert str(log) in str(caught.value)
    assert tail(log)[-1] == "ValueError: the weights do not fit"
    assert gone(child_of(log))


@pytest.mark.parametrize("do", ["hang", "another"])
def test_one_that_does_not_serve_the_model_in_time_is_an_error(make: Make, tmp_path: Path, do: str) -> None:
    seen: list[str] = []
    with (
        pytest.raises(ServingError, match=r"found no answer after 3 s, the limit"),
        started(make(do), tmp_path / "serve.log") as running,
    ):
        running.wait_until_it_answers(3, lambda passed, last: seen.append(last))
    assert any(line.startswith("CHILD") for line in seen)


def test_colours_are_taken_off_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\x1b[0;36m(APIServer pid=1)\x1b[0;0m ERROR\n\n  \n")
    assert tail(tmp_path / "log") == ["(APIServer pid=1) ERROR"]


def test_a_log_that_cannot_be_written_is_one_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ServingError, match=r"--log .*: expected a file"),
        started(make("serve"), tmp_path / "file/log"),
    ):
        pass


def test_one_that_ends_later_leaves_its_status(make: Make, tmp_path: Path) -> None:
    with started(made := make("serve"), tmp_path / "serve.log") as running:
        running.wait_until_it_answers(60, SILENT)
        with pytest.raises((OSError, urllib.error.URLError)):
            urllib.request.urlopen(f"{made.url}/end", timeout=10)
        assert running.process.wait(10) == 3
    assert gone(child_of(tmp_path / "serve.log"))
