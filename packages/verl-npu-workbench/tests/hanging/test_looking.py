from __future__ import annotations

import importlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from verl_npu_workbench.hanging import host, stacks
from verl_npu_workbench.hanging.doing import Kind
from verl_npu_workbench.hanging.everywhere import look
from verl_npu_workbench.hanging.looking import Member, as_json, from_json

from tests.cli.conftest import Run, run
from verl_npu.errors import CommandError

from .test_verdict import member

__all__ = ["run"]  # a fixture


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a program that sleeps, with a terminal's escape codes in its name."""
    program = tmp_path / "nap\x1b[31m.py"
    program.write_text("import time\n\ndef nap():\n    time.sleep(600)\n\nprint('up', flush=True)\nnap()\n")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def spy() -> None:
    if not stacks.program():
        pytest.skip("py-spy is not installed")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command look for half a second, and not for five."""
    monkeypatch.setattr(importlib.import_module("verl_npu_workbench.cli.hanging"), "look", partial(look, pause=0.5))


def test_a_process_is_looked_into_by_its_id(spy: None, sleeper: subprocess.Popen[bytes]) -> None:
    seen = look(str(sleeper.pid), pause=0.5)
    (found,) = seen.members
    assert (found.pid, found.kind, found.moved, seen.whole) == (sleeper.pid, Kind.SLEEP, False, True)
    assert found.stack[0].endswith(":4): time.sleep(600)")
    assert sleeper.poll() is None


def test_what_is_printed_has_no_escape_codes_of_others(
    spy: None, soon: None, run: Run, sleeper: subprocess.Popen[bytes]
) -> None:
    status, printed = run("doctor", "--hang", str(sleeper.pid))
    assert (status, "\x1b" in printed) == (1, False)
    assert "stands still" in printed
    assert "nap\\x1b[31m.py" in printed


def test_without_py_spy_it_is_said_what_to_install(
    soon: None, run: Run, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "program", lambda: "")
    status, printed = run("doctor", "--hang", str(sleeper.pid))
    assert (status, "unknown" in printed, "pip install py-spy" in printed) == (2, True, True)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1", "SYS_PTRACE"),
        ('echo \'{"no": "list"}\'', "answered in an unknown format"),
        ("echo nonsense", "answered in an unknown format"),
    ],
)
def test_a_py_spy_that_cannot_look_is_a_problem_and_no_error(
    answer: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\n{answer}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(stacks, "program", lambda: str(fake))
    assert problem in stacks.read([os.getpid()])[os.getpid()].problem


def test_a_py_spy_that_never_answers_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(stacks, "program", lambda: str(fake))
    monkeypatch.setattr(stacks, "_PATIENCE", 0.3)
    assert "did not answer within 0.3 s" in stacks.read([os.getpid()])[os.getpid()].problem


def test_a_process_that_is_not_there_is_one_line(run: Run) -> None:
    status, printed = run("doctor", "--hang", "4194303")
    (line,) = (line for line in printed.splitlines() if not re.search(r", \d+ s$", line))  # drops progress lines
    assert status == 2
    assert "expected the ID of a process on this host" in line


def test_several_jobs_are_named() -> None:
    seen = {7: host.Process(7, 1, "python train.py", "S", 0.0, 1)}
    jobs = [host.Job("01000000", "/tmp/ray/session_x", (7,)), host.Job("7", "", (7,))]
    with pytest.raises(CommandError, match=r"found 2: 01000000 \(python train.py\), 7"):
        host.chosen(jobs, "", seen)
    assert host.chosen(jobs, "01000000", seen) is jobs[0]


def test_a_process_of_a_job_stands_for_the_job() -> None:
    seen = {
        7: host.Process(7, 1, "python train.py", "S", 0.0, 1),
        8: host.Process(8, 7, "python loader", "S", 0.0, 1),
    }
    jobs = [host.Job("01000000", "/tmp/ray/session_x", (7,))]
    assert host.chosen(jobs, "8", seen) is jobs[0]


def test_a_tracker_of_shared_memory_is_no_process_of_the_job() -> None:
    code = "from multiprocessing.resource_tracker import _resource_tracker as its; its.ensure_running(); "
    code += "print(its._pid); input()"
    with subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        tracker = int(process.stdout.readline())
        seen = host.processes()
        found = host.members(host.Job(str(process.pid), "", (process.pid,)), seen)
        assert tracker in seen
        assert [each.pid for each in found] == [process.pid]
        process.communicate(b"\n")


def test_what_a_host_answers_is_read_back() -> None:
    there = member(1)
    assert from_json(json.loads(json.dumps(as_json(there))), "10.0.0.2") == Member(
        **{**{name: getattr(there, name) for name in Member.__slots__}, "host": "10.0.0.2"}
    )


@pytest.mark.parametrize("change", [{"kind": "dances"}, {"pid": [1]}, {"stack": 5}, {"title": None}])
def test_an_answer_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(as_json(member(1)) | change, "10.0.0.2")
