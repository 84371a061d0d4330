"""test.sh: lint, types and tests, in an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness import environment, machine, pins, start

# Two processes, on however many cores: tests/conftest.py keeps trainings to one of them, for their memory.
_ALL = ("-q", "--durations=30", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")


_HELP = """usage: test.sh [ARGUMENT ...]

Make an environment (minutes, once), and run ruff, mypy and all tests in it. Arguments go to pytest:
test.sh tests/registry -k name"""


def install_sandbox() -> None:
    """Install bubblewrap for the tests of rehearsals, if that can be; they are skipped without it."""
    if shutil.which("bwrap") or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    command = ["apt-get", "install", "-y", "bubblewrap"]
    print(f"$ {' '.join(command)}", flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(
            f"test.sh: bubblewrap could not be installed, so the tests of its sandbox are skipped: {said}", flush=True
        )


def main() -> int:
    """Make the environment, then run every check in it; the status is that of the first one that fails."""
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(_HELP)
        return 0
    # For its errors: no compiler, for one, is said now and not after minutes of installing.
    machine.look(2, sys.executable)
    pin = pins.find(pins.DEFAULT)
    recipe = environment.Recipe(pin, None, pin.transformers, virtual=True, purpose="test", extras="dev")
    python = environment.make(recipe)
    install_sandbox()
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ASCEND"}
    # Once: compiling it takes longer than a test may. Meanwhile the other core reads the source.
    print("$ building the virtual device", flush=True)
    building = subprocess.Popen(
        [str(python), "-c", "import torch, torch_npu"],
        cwd=environment.PROJECT,
        env=inherited | {"VIRTUAL_ASCEND": "2"},
    )
    with building:
        status = run(python, inherited, ("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
    if status:
        return status
    if building.returncode:
        print("test.sh: FAILED: the virtual device does not load", file=sys.stderr)
        return 1
    if sys.argv[1:]:
        return run(python, inherited, ("pytest", *sys.argv[1:]))
    # The tests of each distribution by themselves: they must not need another's.
    packages = (environment.VIRTUAL_ASCEND, environment.PROJECT, environment.WORKBENCH)
    return max(run(python, inherited, ("pytest", *_ALL), folder=package) for package in packages)


def run(
    python: Path, variables: Mapping[str, str], *commands: tuple[str, ...], folder: Path = environment.PROJECT
) -> int:
    """Run modules of the environment one after another; the status is that of the first one that fails."""
    for command in commands:
        print(f"$ {' '.join(command)}", flush=True)
        status = subprocess.run([str(python), "-m", *command], cwd=folder, env=variables, check=False).returncode
        if status:
            print(f"test.sh: FAILED: {command[0]}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(start.whole("test.sh", main))
