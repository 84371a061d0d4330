from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness import process

# Leaves a grandchild in a session of its own behind, as Ray does.
LEAVES = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("started", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def run(tmp_path: Path, seconds: str, timeout: float | None) -> process.Ended:
    run_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
    environment = os.environ | {process.MARK: run_id}
    command = [sys.executable, "-c", LEAVES, seconds]
    ended = process.run(command, environment, tmp_path, tmp_path / "log", timeout, lambda: None)
    assert process.survivors(run_id) == []
    return ended


def test_status_and_log_are_kept_and_nothing_is_left_running(tmp_path: Path) -> None:
    ended = run(tmp_path, "0.2", None)
    assert (ended.status, ended.timed_out) == (3, False)
    assert (tmp_path / "log").read_text() == "started\n"


def test_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    ended = run(tmp_path, "600", 1.0)
    assert ended.timed_out
    assert ended.status != 0
    assert ended.seconds < 20
