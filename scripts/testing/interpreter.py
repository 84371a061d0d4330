"""Starts Python processes with fake packages on their path, for tests of activation, which happens once in a
process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SHOW = "import json, verl_npu; print(json.dumps(verl_npu.status()))"
"""A program that prints the status as its last line, for `Result.status`."""


def import_path(*folders: Path) -> str:
    """Return a PYTHONPATH with `folders` before the current PYTHONPATH.

    It does not use `sys.path`, because earlier tests may have added the virtual Ascend to it.
    """
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def python(
    *words: str,
    paths: Iterable[Path] = (),
    clean: str | tuple[str, ...] = (),
    cwd: Path | None = None,
    seconds: float = 600,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end, with `paths` first on its path.

    Environment variables that begin with `clean` are removed, and the variables in `more` are added.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(clean)}
    return subprocess.run(
        [sys.executable, *words],
        env={**inherited, "PYTHONPATH": import_path(*paths), **more},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@dataclass
class Result:
    """The output and exit status of a program."""

    out: str
    err: str
    code: int

    @property
    def status(self) -> dict:
        return json.loads(self.out.splitlines()[-1])


@dataclass
class Interpreter:
    """Runs programs with a folder of fake packages first on the path."""

    site: Path

    def package(self, name: str, source: str = "") -> None:
        path = self.site / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def run(self, program: str, **environment: str) -> Result:
        result = python("-c", program, paths=[self.site], clean=("VERL_", "ASCEND_"), **environment)
        return Result(result.stdout, result.stderr, result.returncode)
