"""Starts the processes of the tests with the real vllm-ascend."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness.pins import PINS, Engine
from virtual_ascend import testing as processes

PYTHONS = [path for path in os.environ.get("VERL_NPU_VLLM_ASCEND", "").split(os.pathsep) if path]
RELEASE = "0.11.0"
"""The release for tests that need this one."""
_INSTALLED = "import importlib.metadata; print(importlib.metadata.version('vllm-ascend'))"


@cache
def engine_of(python: str) -> Engine:
    """Return the engine of a pin whose release of vllm-ascend an environment has."""
    found = subprocess.run([python, "-c", _INSTALLED], capture_output=True, text=True, check=True).stdout.strip()
    return next(pin.engine for pin in PINS.values() if pin.engine and pin.engine.vllm_ascend == found)


def python(release: str = RELEASE) -> str:
    """Return the Python of the environment with a release; skip without it."""
    for path in PYTHONS:
        if engine_of(path).vllm_ascend == release:
            return path
    pytest.skip(f"set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend {release}")


def environment(engine: Engine) -> dict[str, str]:
    """Return the variables of a process that serves on two virtual NPUs."""
    return processes.environment(
        VIRTUAL_ASCEND="2",
        VIRTUAL_ASCEND_MEMORY="2",
        VIRTUAL_ASCEND_TORCH_NPU_VERSION=engine.torch_npu,
        VLLM_VERSION=engine.vllm,
        VLLM_ASCEND_ENABLE_NZ="0",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
    )


def said(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return the answers that a program has printed."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return [json.loads(line.removeprefix("ANSWER ")) for line in lines]


def answers(
    program: Path, *words: str, folder: Path, by: str | None = None, timeout: float = 600, **variables: str
) -> list[Any]:
    """Run a program with that Python to its end, and return all its answers."""
    return said(ended(program, *words, folder=folder, by=by, timeout=timeout, **variables))


def ended(
    program: Path, *words: str, folder: Path, by: str | None = None, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, good or bad."""
    path = by or python()
    return subprocess.run(
        [path, str(program), *words],
        env=environment(engine_of(path)) | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=folder,
    )


def answer(program: Path, *words: str, folder: Path, by: str | None = None, **variables: str) -> dict[str, Any]:
    """Run a program to its end, and return its only answer."""
    (found,) = answers(program, *words, folder=folder, by=by, **variables)
    return dict(found)


@dataclass
class Served:
    """An engine in a process of its own."""

    process: subprocess.Popen[str]
    log: Path
    start: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise AssertionError(f"the engine ended: {self.log.read_text()[-3000:]}")

    def tell(self, do: str, **options: object) -> dict[str, Any]:
        """Send it a request, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self.process.stdin.flush()
        return self.answer()


def served(kind: str, folder: Path, *words: str, by: str | None = None) -> Iterator[Served]:
    """Start vllm_ascend_engine.py with that Python, and end it afterwards."""
    path = by or python()
    log = folder / "log.txt"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [path, str(_ENGINE), kind, str(folder / "models"), *words],
            env=environment(engine_of(path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
        )
        engine = Served(process, log)
        try:
            engine.start = engine.answer()
            yield engine
        finally:
            process.kill()
            process.communicate()


_ENGINE = Path(__file__).with_name("vllm_ascend_engine.py")
