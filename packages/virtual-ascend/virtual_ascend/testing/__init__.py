"""Public helpers for tests of programs on virtual NPUs: they run processes with virtual NPUs, and groups of ranks.

`testing.fixtures`, `testing.nightly`, `testing.junit`, and `testing.fork_server` are for pytest.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ..variables import NPUS, VISIBLE_DEVICES

NPUS_OF_A_TEST = 2
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

STARTERS: list[Callable[[str, Sequence[str], Mapping[str, str]], subprocess.Popen[str] | None]] = []
"""Functions that start a program faster than a new process does, or return None; see `testing.fork_server`."""

# The torch_npu for each version of torch, in its newest patch version.
_WHEELS = {
    "2.5.1": "2.5.1.post1",
    "2.7.1": "2.7.1",
    "2.8.0": "2.8.0",
    "2.9.0": "2.9.0",
    "2.10.0": "2.10.0",
    "2.13.0": "2.13.0",
}


class NoWheelError(LookupError):
    """There is no torch_npu wheel for the installed torch version. The message states the reason."""


class RankFailedError(AssertionError):
    """A rank's program exited with a nonzero status. The message is the end of the rank's stderr."""


def install_torch_npu(folder: Path) -> str:
    """Install the torch_npu wheel for the installed torch version into a folder, and return the wheel's version.

    A process that has this folder on PYTHONPATH and sets VIRTUAL_ASCEND_TORCH_NPU=real uses that wheel on virtual
    NPUs.

    Raises:
        NoWheelError: there is no wheel for the installed torch version, or the wheel cannot be downloaded.
    """
    torch = metadata.version("torch").partition("+")[0]
    if torch not in _WHEELS:
        raise NoWheelError(f"expected torch {' or '.join(_WHEELS)}; found {torch}")
    version = _WHEELS[torch]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, f"torch_npu=={version}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoWheelError(f"torch_npu {version} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return version


def free_port() -> int:
    """Return a port on loopback on which nothing is listening."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**changes: str | None) -> dict[str, str]:
    """Return a copy of this process's environment variables, changed so that a program has two virtual NPUs. Each
    variable that `changes` sets to None is removed."""
    env = {**os.environ, NPUS.name: str(NPUS_OF_A_TEST), "OMP_NUM_THREADS": "1"}
    env.pop(VISIBLE_DEVICES, None)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def pythonpath_and(folder: Path) -> str:
    """Return the value of PYTHONPATH with a folder added at the end."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)])


def end_with_parent() -> None:
    """Make the system kill this process when its parent process dies, so that no rank outlives its test."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(code: str, timeout: float = 120, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program with virtual NPUs in a separate process. `changes` are passed to `environment`."""
    with _start(textwrap.dedent(code), (), environment(**changes)) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _start(code: str, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a program, with its output in pipes."""
    for start in STARTERS:
        if process := start(code, arguments, env):
            return process
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )


def start_ranks(
    code: str, folder: Path, size: int = NPUS_OF_A_TEST, *, arguments: Sequence[str] = (), **changes: str | None
) -> list[subprocess.Popen[str]]:
    """Start a program once for each rank of a group. The ranks meet in `folder`.

    The program gets the variables RANK, WORLD_SIZE, and INIT, which is the init_method of torch.distributed.
    """
    return [
        _start(
            textwrap.dedent(code),
            arguments,
            environment(RANK=str(rank), WORLD_SIZE=str(size), INIT=f"file://{folder}/meet", **changes),
        )
        for rank in range(size)
    ]


def results(processes: Iterable[subprocess.Popen[str]], timeout: float = 120) -> list[Any]:
    """Return, for each rank, the last line of its output, parsed as JSON. If a rank fails, the other ranks are
    terminated.

    Raises:
        RankFailedError: a rank exited with a nonzero status.
    """
    processes = list(processes)
    out = []
    try:
        for process in processes:
            stdout, stderr = process.communicate(timeout=timeout)
            if process.returncode != 0:
                raise RankFailedError(stderr[-3000:])
            out.append(json.loads(stdout.strip().splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return out
