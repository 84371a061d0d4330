"""Ray's node: its end is an error with its last words, unless the host was too busy for it to come up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from verl_npu.errors import LaunchError
from verl_npu.family import Family
from verl_npu.launch.ray_node import Node
family = Family()
node = Node(family, ['sh', '-c', sys.argv[1]], {'PATH': '/usr/bin:/bin'}, print)
try:
    for _ in range(int(sys.argv[2])):
        while not node.has_ended():
            time.sleep(0.05)
        node.check()
except LaunchError as error:
    print(error)
family.end(1)
"""


def run(shell: str, times: int = 5) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, shell, str(times)], capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.splitlines()


def test_an_end_is_an_error_with_the_last_words() -> None:
    (said,) = run("echo first; echo the disk is full; exit 3")
    assert "its end with status 3: first | the disk is full" in said


def test_a_node_that_was_too_slow_is_started_three_times_in_all(tmp_path: Path) -> None:
    said = run(f"echo x >> {tmp_path}/tries; echo 'The current node timed out during startup.'; exit 1")
    assert len((tmp_path / "tries").read_text().splitlines()) == 3
    assert ["started again" in line for line in said] == [True, True, False]
