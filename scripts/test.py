"""test.sh: run ruff, mypy, and the tests in an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from harness import environment, machine, pins, start

# Two distributions are tested at a time, so four processes share two cores: many tests wait for a process that they
# started. tests/conftest.py runs all trainings in one process, to save memory. pytest's cache would add a folder to
# the checkout, which the tests of the sandbox watch.
_ALL = ("-q", "--durations=30", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-p", "no:cacheprovider")


_NO_TESTS = 5
"""pytest's exit status if it found no test."""
_HELP = """usage: test.sh [ARGUMENT ...]

Make an environment (minutes, once), and run ruff, mypy, and all tests in it. Arguments go to pytest:
test.sh tests/registry -k name. All paths must be in the same distribution."""


def install_sandbox() -> None:
    """Install bubblewrap for the tests of the sandbox, if possible. Without it they are skipped."""
    if shutil.which("bwrap") or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    command = ["apt-get", "install", "-y", "bubblewrap"]
    print(f"$ {' '.join(command)}", flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(
            f"test.sh: bubblewrap could not be installed, so the tests of the sandbox are skipped: {said}", flush=True
        )


def main() -> int:
    """Make the environment, run every check in it, and return the status of the first check that fails."""
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(_HELP)
        return 0
    # Only for its errors: a missing compiler, for example, is reported now and not after minutes of installing.
    machine.look(2, sys.executable)
    pin = pins.find(pins.DEFAULT)
    recipe = environment.Recipe(pin, None, pin.transformers, virtual=True, purpose="test", extras="dev")
    python = environment.make(recipe)
    install_sandbox()
    # Several processes share the cores, and torch's threads would only wait for each other.
    inherited = {"OMP_NUM_THREADS": "1", **os.environ}
    # Hypothesis would add a folder to the checkout, which the tests of the sandbox watch.
    inherited["HYPOTHESIS_STORAGE_DIRECTORY"] = str(recipe.folder / "hypothesis")
    inherited.pop("VIRTUAL_ASCEND", None)
    # Hundreds of processes import the same modules.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        folders = folders_of(sys.argv[1:])
    except ValueError as error:
        print(f"test.sh: {error}", file=sys.stderr)
        return 2
    # Compile the device, because a test's timeout is shorter. A new environment has compiled it already.
    command, variables = environment.loading(python)
    if subprocess.run(command, check=False, env=inherited | variables).returncode:
        print("test.sh: FAILED: the virtual device does not load", file=sys.stderr)
        return 1
    if status := run(python, inherited, ("ruff", "check", "."), ("ruff", "format", "--check", ".")):
        return status
    # mypy takes a minute of one core, and many tests wait for a process that they started.
    print("$ mypy", flush=True)
    with subprocess.Popen([str(python), "-m", "mypy"], cwd=environment.PROJECT, env=inherited) as types:
        statuses = run_tests(python, inherited, folders)
    if types.returncode:
        print("test.sh: FAILED: mypy", file=sys.stderr)
        return types.returncode
    return status_of(statuses)


def run_tests(python: Path, variables: Mapping[str, str], folders: Mapping[Path, Sequence[str]]) -> list[int]:
    """Run pytest in each folder, with its arguments, and return the exit statuses.

    Each distribution's tests run separately, because they must not need another distribution's tests. The tests in the
    last folder run beside the others, and their output is printed at the end.
    """
    *others, (last, words) = folders.items()
    if not others:
        return [run(python, variables, ("pytest", *words), folder=last)]
    with tempfile.TemporaryFile() as output:
        command = [str(python), "-m", "pytest", *words]
        with subprocess.Popen(command, cwd=last, env=variables, stdout=output, stderr=subprocess.STDOUT) as beside:
            print(f"The tests in {last.name} run beside the next ones; their output comes last.", flush=True)
            try:
                statuses = [run(python, variables, ("pytest", *words), folder=folder) for folder, words in others]
            except BaseException:
                beside.terminate()
                raise
        print(f"$ pytest {' '.join(words)}", flush=True)
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    if beside.returncode not in (0, _NO_TESTS):
        print("test.sh: FAILED: pytest", file=sys.stderr)
    return [*statuses, beside.returncode]


def status_of(statuses: Sequence[int]) -> int:
    """Return the status of a test run from the statuses of pytest, which are negative if a signal ended it. Zero is
    success, even if some distributions have no test with the name in the arguments."""
    return max(map(abs, [status for status in statuses if status != _NO_TESTS] or statuses))


def folders_of(words: Sequence[str]) -> dict[Path, list[str]]:
    """Return the folders in which pytest must run, with its arguments for each. If paths are named, it is one folder.

    Raise ValueError if the paths are in several distributions, because their tests cannot share a process.
    """
    packages = (environment.VIRTUAL_ASCEND, environment.PROJECT, environment.WORKBENCH)
    if not words:
        return {package: [*_ALL] for package in packages}
    paths = {word: Path(word.partition("::")[0]).resolve() for word in words}
    # A word after one of these options is its value, even if a file has that name.
    values = {word for option, word in pairwise(words) if option in ("-k", "-m", "-p", "--since")}
    named = {word: path for word, path in paths.items() if word[:1] != "-" and word not in values and path.exists()}
    owners = {_owner(path) for path in named.values()}
    if len(owners) > 1:
        raise ValueError(f"expected paths of one distribution; found {', '.join(named)}. Run test.sh once for each")
    if not owners:
        return {package: [*words] for package in packages}
    (owner,) = owners
    return {
        owner: [str(named[word]) + word[len(word.partition("::")[0]) :] if word in named else word for word in words]
    }


def _owner(path: Path) -> Path:
    """Return the folder of the distribution that contains a path."""
    inner = (environment.VIRTUAL_ASCEND, environment.WORKBENCH)
    return next((package for package in inner if path.is_relative_to(package)), environment.PROJECT)


def run(
    python: Path, variables: Mapping[str, str], *commands: tuple[str, ...], folder: Path = environment.PROJECT
) -> int:
    """Run modules of the environment one after another, and return the status of the first one that fails."""
    for command in commands:
        print(f"$ {' '.join(command)}", flush=True)
        status = subprocess.run([str(python), "-m", *command], cwd=folder, env=variables, check=False).returncode
        if status:
            print(f"test.sh: FAILED: {command[0]}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(start.whole("test.sh", main))
