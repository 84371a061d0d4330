"""Ray's node: its end is an error with its last words, unless the host was too busy for it to come up.

The job's command line, its exit status, and its log.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from verl_npu_workbench.launch.ray import Ended, Log, ended, entrypoint

PROGRAM = """
import sys, time
from verl_npu.errors import LaunchError
from verl_npu_workbench.processes import ProcessTree
from verl_npu_workbench.launch.ray import RayProcess
processes = ProcessTree()
node = RayProcess(processes, ['sh', '-c', sys.argv[1]], {'PATH': '/usr/bin:/bin'}, print)
try:
    for _ in range(int(sys.argv[2])):
        while not node.has_ended():
            time.sleep(0.01)
        node.check()
except LaunchError as error:
    print(error)
processes.end(1)
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


@pytest.mark.parametrize(("environ", "shown"), [({}, "unset"), ({"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "0,1")])
def test_a_command_reaches_the_driver_as_it_was_typed(tmp_path: Path, environ: dict[str, str], shown: str) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    words = ["python", "a b", "$HOME", "it's", '"', "x=[1,2]", "*", ""]
    print_all = ["sh", "-c", 'pwd; echo "${ASCEND_RT_VISIBLE_DEVICES-unset}"; printf "%s\\n" "$@"', "sh", *words]
    line = entrypoint(print_all, folder, environ)
    hidden = {"PATH": "/usr/bin:/bin", "ASCEND_RT_VISIBLE_DEVICES": ""}
    ran = subprocess.run(line, shell=True, env=hidden, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [str(folder), shown, *words]


def test_the_line_is_one_that_a_shell_can_read() -> None:
    assert shlex.split(entrypoint(["a b"], Path("/x y"), {}))[-1] == "a b"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, Ended(0, "")),
        ("FAILED", 3, Ended(3, "")),
        ("FAILED", -9, Ended(137, "")),
        ("FAILED", None, Ended(1, "why")),
        ("STOPPED", None, Ended(1, "why")),
        ("RUNNING", None, None),
        ("PENDING", None, None),
    ],
)
def test_the_status_is_the_one_that_a_shell_would_have(status: str, code: int | None, expected: Ended | None) -> None:
    details = SimpleNamespace(status=status, message="" if code == 0 else "why", driver_exit_code=code)
    assert ended(details) == expected


def test_the_log_is_copied_as_it_grows_and_lines_of_a_host_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "session_latest" / "logs"
    folder.mkdir(parents=True)
    output = io.BytesIO()
    log = Log(tmp_path, "one", output)
    log.copy()
    file = folder / "job-driver-one.log"
    file.write_text("(work pid=1, ip=10.0.0.2) a\n(work pid=1, ip=10.0.0.22) b\n(work pi")
    log.copy()
    with file.open("a") as stream:
        stream.write("d=1, ip=10.0.0.2) c\n")
    log.copy()
    assert output.getvalue() == file.read_bytes()
    assert log.lines_of("10.0.0.2", 8) == ["(work pid=1, ip=10.0.0.2) a", "(work pid=1, ip=10.0.0.2) c"]
    assert log.lines_of("10.0.0.2", 1) == ["(work pid=1, ip=10.0.0.2) c"]
