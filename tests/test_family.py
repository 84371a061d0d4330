"""What a launch starts ends with all that descends from it, and nothing else ends."""

from __future__ import annotations

import signal
import subprocess
import sys

from .processes import gone

PROGRAM = """
import subprocess, sys, time
from verl_npu.family import Family
before = subprocess.Popen(['sleep', '1000'], start_new_session=True)
family = Family()
shell = '''{shell}'''
member = family.start(['sh', '-c', shell], {{'PATH': '/usr/bin:/bin'}})
time.sleep(1)
print(len(family.left()), flush=True)
start = time.monotonic()
left = family.end({patience})
print(left, round(time.monotonic() - start), before.poll(), flush=True)
before.kill()
before.wait()
"""


def end(shell: str, patience: float) -> list[str]:
    program = PROGRAM.format(shell=shell, patience=patience)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.splitlines()


def test_orphans_with_sessions_of_their_own_are_ended() -> None:
    assert end('setsid sh -c "sleep 1000 & setsid sleep 1000 &" & sleep 0.2; exit 0', 5) == ["2", "[] 0 None"]


def test_what_does_not_listen_is_killed_after_the_patience() -> None:
    assert end('trap "" TERM; sleep 1000 & while true; do sleep 0.1; done', 1)[1] == "[] 1 None"


def test_nothing_stays_when_the_launch_itself_is_killed() -> None:
    program = (
        "import time; from verl_npu.family import Family;"
        "print(Family().start(['sleep', '1000'], {'PATH': '/usr/bin:/bin'}).process.pid, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launch:
        assert launch.stdout is not None
        pid = int(launch.stdout.readline())
        launch.send_signal(signal.SIGKILL)
        launch.wait()
    assert gone(pid, within=5)
