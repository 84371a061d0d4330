"""The two processes: their variables, and their observations, even if a call ended one of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
USED = Path(__file__).with_name("used.json")
ENDINGS = 200  # more processes than this mean that something else is wrong


def version_of(folder: Path) -> str:
    """Return the version of the torch_npu in a folder."""
    found = re.search(r"__version__ = '([\w.]+)'", (folder / "torch_npu" / "version.py").read_text())
    if found is None:
        raise SystemExit(f"expected a torch_npu with a version in {folder}")
    return found.group(1).partition("+")[0]


def used() -> dict[str, list[str]]:
    """Return the libraries that use each name."""
    known: dict[str, list[str]] = json.loads(USED.read_text())
    return known


def ours(version: str) -> dict[str, str]:
    """Return the variables of a process with our own torch_npu."""
    return {
        "VIRTUAL_ASCEND_TORCH_NPU": "ours",
        "VIRTUAL_ASCEND_TORCH_NPU_VERSION": version,
        "PYTHONPATH": str(PROJECT),
    }


def wheel(folder: Path) -> dict[str, str]:
    """Return the variables of a process with a wheel's torch_npu."""
    return {"VIRTUAL_ASCEND_TORCH_NPU": "real", "PYTHONPATH": f"{folder.resolve()}{os.pathsep}{PROJECT}"}


def observe(settings: dict[str, str], python: str = sys.executable, only: Sequence[str] = ()) -> dict[str, Any]:
    """Observe one torch_npu; a call that ends its process is noted, and the rest goes on in a new one."""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("VERL_NPU_") or key == "VIRTUAL_ASCEND_CACHE"
    }
    env |= {"VIRTUAL_ASCEND": "2", "OMP_NUM_THREADS": "1", **settings}
    results: dict[str, Any] = {}
    first = 0
    for _ in range(ENDINGS):
        command = [python, "-m", "tests.differential.observing", str(first), *only]
        done = subprocess.run(command, env=env, cwd=PROJECT, capture_output=True, text=True, check=False)
        begun: tuple[int, str] | None = None
        for line in done.stdout.splitlines():
            number, label, *result = json.loads(line)
            begun = None if result else (number, label)
            if result:
                results[label] = result[0]
        if done.returncode == 0:
            return results
        if begun is None:
            raise SystemExit(f"expected observations; found status {done.returncode}: {done.stderr[-2000:]}")
        first = begun[0] + 1
        results[begun[1]] = {"end": "ends", "said": f"signal {-done.returncode}"}
    raise SystemExit(f"expected at most {ENDINGS} calls that end their process")
