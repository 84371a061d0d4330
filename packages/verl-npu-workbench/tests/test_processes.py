from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from testing.processes import gone
from verl_npu_workbench.processes import answers, captured, own_python

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from verl_npu_workbench.processes import ProcessTree
before = subprocess.Popen(['sleep', '1000'], start_new_session=True)
processes = ProcessTree()
shell = '''{shell}'''
started = processes.start(['sh', '-c', shell], {{'PATH': '/usr/bin:/bin'}})
# A shell that is still starting the others may make as many by chance: those that are to stay are `sleep`, and `sh`
# only where it waits.
until = time.monotonic() + 20
while time.monotonic() < until:
    names = (Path(f'/proc/{{pid}}/comm') for pid in processes.left())
    found = sorted(name.read_text().strip() for name in names if name.exists())
    if found == {expected}:
        break
    time.sleep(0.05)
print(found, flush=True)
start = time.monotonic()
left = processes.end({patience})
print(left, time.monotonic() - start >= {patience}, before.poll(), flush=True)
before.kill()
before.wait()
"""


@pytest.mark.parametrize(
    ("shell", "expected", "patience", "waits"),
    [
        ('setsid sh -c "sleep 1000 & setsid sleep 1000 &" & sleep 0.2; exit 0', ["sleep", "sleep"], 60, False),
        ('trap "" TERM; sleep 1000 & wait; wait', ["sh", "sleep"], 0.5, True),
    ],
    ids=["orphans with sessions of their own", "what does not listen"],
)
def test_all_that_it_started_is_ended_and_nothing_else(
    shell: str, expected: list[str], patience: float, waits: bool
) -> None:
    program = PROGRAM.format(shell=shell, expected=expected, patience=patience)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == [str(expected), f"[] {waits} None"]


def test_nothing_stays_when_the_launch_itself_is_killed() -> None:
    program = (
        "import time; from verl_npu_workbench.processes import ProcessTree;"
        "print(ProcessTree().start(['sleep', '1000'], {'PATH': '/usr/bin:/bin'}).process.pid, flush=True);"
        "time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launch:
        assert launch.stdout is not None
        pid = int(launch.stdout.readline())
        launch.send_signal(signal.SIGKILL)
        launch.wait()
    assert gone(pid, within=5)


def test_a_port_answers_while_somebody_listens_there() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert not answers("127.0.0.1", port)
        other.listen()
        assert answers("127.0.0.1", port)


@pytest.mark.parametrize("version", [sys.version_info, (3, 10)], ids=["this Python", "as before 3.11"])
@pytest.mark.parametrize("words", [("-m", "a_program"), ("{folder}/own/a_program.py",), ("-c", "{code}")])
def test_what_lies_in_the_current_directory_is_imported_by_no_python_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], words: tuple[str, ...]
) -> None:
    code = "import sys, importlib.util; print(__name__, sys.argv[1:], importlib.util.find_spec('hostile'))"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a_program.py").write_text(code)
    (tmp_path / "hostile.py").write_text("")
    monkeypatch.setattr(sys, "version_info", version)
    command = own_python(*(word.format(folder=tmp_path, code=code) for word in words), "a", "b")
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "own")}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "__main__ ['a', 'b'] None\n", done.stderr


STUBBORN = """
import os, signal, subprocess, sys, time
sleeper = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
started = [
    subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE, start_new_session=own)
    for own in (False, True)
]
for each in started:
    each.stdout.readline()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), *(each.pid for each in started), flush=True)
time.sleep(600)
"""
"""A job whose processes ignore SIGTERM, have sessions of their own, and lose their parents. It prints three ids."""

JOB = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}], stderr=subprocess.DEVNULL)"
WAYS = {
    "a command": "import click\nfrom verl_npu import cli\nfrom verl_npu_workbench.cli.options import Whole\n"
    f"@cli.main.command('job', cls=Whole)\ndef job():\n    {JOB}\n"
    "import sys; sys.argv[1:] = ['job']; cli.run()",
    "a script": f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\nfrom harness import start\n"
    f"def job():\n    {JOB}\n    return 0\n"
    "sys.exit(start.whole('smoke.sh', job))",
}


# A terminal sends Ctrl-C to the whole group, and `kill` another signal to the process itself.
DAILY = (("a command", signal.SIGINT, True), ("a script", signal.SIGTERM, False))
NIGHTLY = pytest.mark.nightly("verl_npu_workbench/processes.py", "scripts/harness")
SIGNALS = product(WAYS, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), (False, True))


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(
    ("way", "number", "group"), [pytest.param(*each, marks=() if each in DAILY else NIGHTLY) for each in SIGNALS]
)
def test_a_signal_ends_all_that_was_started(way: str, number: signal.Signals, group: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAYS[way]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        started = [int(word) for word in program.stdout.readline().split()]
        assert len(started) == 3
        (os.killpg if group else os.kill)(program.pid, number)
        assert program.wait(60) == 128 + number
        # On a busy machine it prints progress meanwhile.
        said = [line for line in program.stderr.read().splitlines() if not re.fullmatch(r"verl-npu: job, \d+ s", line)]
    assert len(said) == 1, said
    assert [pid for pid in started if not gone(pid)] == []


SWALLOWED = {
    "an object's end": """
class Forgotten:
    def __del__(self):
        os.kill(os.getpid(), {number})
        sum(range(100000))
made = Forgotten()
del made
""",
    "a callback of C": """
import ctypes
@ctypes.CFUNCTYPE(None)
def called():
    os.kill(os.getpid(), {number})
    sum(range(100000))
called()
""",
}
FORGOTTEN = """
try:
    os.kill(os.getpid(), {number})
    time.sleep(60)
except BaseException:
    pass
{more}
print('went on to its end', flush=True)
"""


def told_by(text: str, number: signal.Signals) -> tuple[int, str, str]:
    """Return the status and both outputs of a command with this body."""
    body = "".join(f"    {line}\n" for line in text.format(number=int(number), more="").splitlines())
    program = (
        "import os, sys, time\nfrom verl_npu import cli\nfrom verl_npu_workbench.cli.options import Whole\n"
        f"@cli.main.command('job', cls=Whole)\n"
        f"def job():\n{body}\nsys.argv[1:] = ['job']\ncli.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(
    ("way", "number", "name"),
    [("an object's end", signal.SIGINT, "Ctrl-C"), ("a callback of C", signal.SIGTERM, "SIGTERM")],
)
def test_a_signal_that_python_swallows_ends_the_command(way: str, number: signal.Signals, name: str) -> None:
    text = f"{SWALLOWED[way]}\nfor _ in range(100):\n    time.sleep(0.1)\nprint('went on', flush=True)"
    assert told_by(text, number) == (128 + number, "", f"verl-npu: ended by {name}\n")


def test_a_signal_that_a_library_swallows_is_told_at_the_end() -> None:
    said = "verl-npu: ended by SIGTERM\n"
    assert told_by(FORGOTTEN, signal.SIGTERM) == (128 + signal.SIGTERM, "went on to its end\n", said)


def test_another_signal_is_raised_after_one_that_a_library_swallowed() -> None:
    again = FORGOTTEN.replace("{more}", "os.kill(os.getpid(), {number})\ntime.sleep(60)")
    assert told_by(again, signal.SIGTERM) == (128 + signal.SIGTERM, "", "verl-npu: ended by SIGTERM\n")


def test_objects_are_not_gone_through_once_a_command_has_answered() -> None:
    text = "import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count() > 1000))"
    assert told_by(text, signal.SIGTERM) == (0, "True\n", "")


def test_a_command_has_no_input_and_may_print_any_bytes(tmp_path: Path) -> None:
    code = "import os, sys; print(repr(sys.stdin.read()), os.getcwd(), flush=True); os.write(2, b'\\xff'); sys.exit(3)"
    done = captured([sys.executable, "-c", code], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"'' {tmp_path}\n", "\ufffd")
