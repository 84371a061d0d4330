"""`verl-npu serve` as a process: it says when it answers, and its end is the end of all that it started."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.conftest import model, vllm
from tests.serving.test_server import child_of, gone

from .conftest import Run

__all__ = ["model", "vllm"]  # fixtures

Serve = Callable[..., "subprocess.Popen[str]"]
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom verl_npu.cli import run; run()"
)


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def serve(vllm: Path, model: Path, port: int, tmp_path: Path) -> Iterator[Serve]:
    """Serve the model in a process."""
    processes = []

    def call(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, "serve", str(model), "--port", str(port), "--name", "small"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{Path(__file__).parents[3]}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_when_it_answers_and_a_signal_ends_all_of_it(
    serve: Serve, port: int, tmp_path: Path, number: signal.Signals
) -> None:
    process = serve()
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines[1].startswith(f"serving small at http://127.0.0.1:{port}/v1 after ")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
        assert answer.status == 200
    child = child_of(tmp_path / f"outputs/serve-{port}.log")
    process.send_signal(number)
    output, said = process.communicate(timeout=40)
    assert process.returncode == 128 + number
    name = "Ctrl-C" if number is signal.SIGINT else number.name
    assert said.splitlines()[-1] == f"verl-npu: ended by {name}"
    assert "Traceback" not in said
    assert output == "ended, with all that it had started\n"
    assert gone(child)


def test_a_signal_while_it_comes_up_ends_all_of_it(serve: Serve, port: int, tmp_path: Path) -> None:
    process = serve("--", "--do", "hang")
    log = tmp_path / f"outputs/serve-{port}.log"
    while not log.is_file() or "CHILD" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    assert gone(child_of(log))


def test_a_second_signal_does_not_wait_for_a_server_that_does_not_end(serve: Serve, port: int, tmp_path: Path) -> None:
    process = serve("--", "--do", "stubborn")
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines[1].startswith("serving")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert gone(child_of(tmp_path / f"outputs/serve-{port}.log"))


def test_one_that_does_not_come_up_shows_its_last_lines_and_the_cause(serve: Serve, port: int) -> None:
    process = serve("--", "--do", "fail")
    output, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "    | ValueError: the weights do not fit\n" in output
    assert said.splitlines()[-1].startswith("verl-npu: vLLM's server of ")
    assert "ValueError: the weights do not fit" in said
    assert f"outputs/serve-{port}.log" in said
    assert "Traceback" not in said


def test_one_that_ends_by_itself_has_status_1(serve: Serve, port: int) -> None:
    process = serve()
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    with pytest.raises(OSError, match=r"closed|refused|reset"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/end", timeout=10)
    _, said = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "the server ended by itself with status 3" in said


@pytest.mark.usefixtures("vllm")
def test_a_dry_run_prints_a_command_and_starts_nothing(run: Run, model: Path, port: int) -> None:
    status, output = run("serve", str(model), "--port", str(port), "--dry-run", "--", "--seed", "1")
    assert status == 0
    words = shlex.split(output)
    assert words[-2:] == ["--seed", "1"]
    assert words[words.index("--model") + 1] == str(model)
