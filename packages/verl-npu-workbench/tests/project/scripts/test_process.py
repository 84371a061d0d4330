from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment, machine, pins, process, start
from testing.processes import gone

# Leaves a grandchild in a session of its own behind, as Ray does.
LEAVES = """
import subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(left.pid, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""
# A script with this as its training. It prints the process that it has left behind.
SCRIPT = """
import os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from harness import machine, process, start

def run(request, found):
    log = Path("log")

    def tick():
        if log.read_text().endswith("\\n"):
            print(log.read_text().strip(), flush=True)

    return process.run([sys.executable, "-c", {leaves!r}, "600"], dict(os.environ), Path(), log, None, tick).status

machine.look = lambda npus, python: machine.Machine(True, 2)
sys.argv = ["smoke.py", "--job", "grpo", "--no-venv"]
sys.exit(start.main("smoke.sh", True, run))
"""


def run(folder: Path, seconds: str, timeout: float | None) -> process.Ended:
    log = folder / "log"
    ended = process.run([sys.executable, "-c", LEAVES, seconds], dict(os.environ), folder, log, timeout)
    assert gone(int(log.read_text()), within=1)
    return ended


def test_status_and_log_are_kept_and_nothing_is_left_running(tmp_path: Path) -> None:
    ended = run(tmp_path, "0.2", None)
    assert (ended.status, ended.timed_out) == (3, False)


def test_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    ended = run(tmp_path, "600", 3.0)
    assert ended.timed_out
    assert ended.status != 0
    assert ended.seconds < 20


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
def test_a_signal_to_the_script_ends_its_training(tmp_path: Path, number: signal.Signals, whole_group: bool) -> None:
    program = SCRIPT.format(scripts=str(pins.SCRIPTS), leaves=LEAVES)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        assert script.stdout is not None
        assert script.stderr is not None
        left = int(script.stdout.readline())
        (os.killpg if whole_group else os.kill)(script.pid, number)
        assert script.wait(30) == 128 + number
        assert script.stderr.read().splitlines()[-1] == "smoke.sh: interrupted"
    assert gone(left, within=1)


def test_the_script_is_one_process_with_that_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str], dict[str, str]]] = []

    class Became(Exception):
        """Raised instead of starting another program."""

    def become(program: str, words: list[str], variables: dict[str, str]) -> None:
        asked.append((program, words, variables))
        raise Became

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(machine, "look", lambda npus, python: machine.Machine(True, 2))
    monkeypatch.setattr(environment, "make", lambda recipe: tmp_path / "python")
    monkeypatch.setattr(sys, "argv", ["smoke.py", "--job", "grpo"])
    monkeypatch.delenv(start.INSIDE, raising=False)
    with pytest.raises(Became):
        start.main("smoke.sh", True, lambda request, found: 0)
    ((program, words, variables),) = asked
    assert (program, words[1:]) == (str(tmp_path / "python"), [str(pins.SCRIPTS / "smoke.py"), "--job", "grpo"])
    assert variables[start.INSIDE] == sys.executable
