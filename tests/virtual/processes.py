"""Starting processes that have virtual NPUs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEVICES = 2

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with two virtual NPUs, all of them visible."""
    env = {**os.environ, "VERL_NPU_VIRTUAL": str(DEVICES), "OMP_NUM_THREADS": "1"}
    env.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def project_and(folder: Path) -> str:
    """PYTHONPATH with a folder behind what it has."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)])


def start_ranks(code: str, folder: Path, size: int = 2, **changes: str | None) -> list[subprocess.Popen[str]]:
    """Start a program once per rank, in a group that meets in `folder`; it finds RANK, WORLD_SIZE and INIT."""
    processes = []
    for rank in range(size):
        env = environment(RANK=str(rank), WORLD_SIZE=str(size), INIT=f"file://{folder}/meet", **changes)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(code)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def results(processes: list[subprocess.Popen[str]], timeout: float = 120) -> list[Any]:
    """What every rank printed as its last line, as JSON; a rank that failed fails the test with its error."""
    out = []
    try:
        for process in processes:
            stdout, stderr = process.communicate(timeout=timeout)
            if process.returncode != 0:
                pytest.fail(stderr[-3000:])
            out.append(json.loads(stdout.strip().splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return out
