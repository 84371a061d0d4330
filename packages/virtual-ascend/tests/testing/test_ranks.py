"""The ranks of a test end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TEST = """
import sys, time
from pathlib import Path
from virtual_ascend.testing import start_ranks
print(*(rank.pid for rank in start_ranks("import time; time.sleep(60)", Path(sys.argv[1]))), flush=True)
time.sleep(60)
"""


def runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""  # a zombie has none
    except OSError:
        return False


def test_no_rank_outlives_a_test_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", TEST, str(tmp_path)], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        ranks = test.stdout.readline().split()
        test.kill()
    until = time.monotonic() + 10
    while time.monotonic() < until and any(map(runs, ranks)):
        time.sleep(0.02)
    assert len(ranks) == 2
    assert not any(map(runs, ranks))
