"""Programs with verl at a pin and virtual NPUs; each prints its answer last, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from testing.interpreter import import_path
from virtual_ascend.testing import environment


def answer_of(program: str, verl: Path, *words: str, **changes: str) -> Any:
    """Run a program with these arguments, and return its answer."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environment(PYTHONPATH=import_path(verl), **changes),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
