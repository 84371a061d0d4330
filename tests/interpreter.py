"""Python processes for tests of activation, which happens once in a process, with fake packages on their path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SHOW", "Interpreter", "Result", "import_path"]

SHOW = "import json, verl_npu; print(json.dumps(verl_npu.status()))"
"""A program whose last line `Result.status` reads."""


def import_path(*folders: Path) -> str:
    """PYTHONPATH of a process that imports from some folders first, and then what a new process can import.

    Not `sys.path`: tests before may have added the virtual Ascend to it.
    """
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


@dataclass
class Result:
    """How a program ended."""

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
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "ASCEND_"))}
        path = os.pathsep.join([str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])])
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**inherited, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Result(result.stdout, result.stderr, result.returncode)
