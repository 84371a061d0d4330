"""Code of one revision in vllm-ascend's history, for the tests of faults that users reported.

The history is in `VERL_NPU_UPSTREAMS` (`vllm-ascend.git`); none of it is kept here.
"""

from __future__ import annotations
import __future__

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def repository() -> Path:
    """Return the repository's folder; skip the test without it."""
    upstreams = os.environ.get("VERL_NPU_UPSTREAMS", "")
    folder = Path(upstreams, "vllm-ascend.git")
    if not upstreams or not folder.is_dir():
        pytest.skip("set VERL_NPU_UPSTREAMS to a folder with vllm-ascend.git")
    return folder


@dataclass(frozen=True)
class Revision:
    """A revision of vllm-ascend's history."""

    history: Path
    name: str

    def __call__(self, path: str, owner: str, methods: tuple[str, ...], names: Mapping[str, object]) -> Any:
        """Return a class made of some methods of one of its classes; `names` are the names that these use."""
        found = next(n for n in self.tree(path).body if isinstance(n, ast.ClassDef) and n.name == owner)
        found.body = [item for item in found.body if isinstance(item, ast.FunctionDef) and item.name in methods]
        found.bases, found.decorator_list = [ast.Name("Base", ast.Load())], []
        return self._run(path, [found], names)[owner]

    def function(self, path: str, name: str, names: Mapping[str, object]) -> Any:
        """Return one of its functions."""
        found = [n for n in self.tree(path).body if isinstance(n, ast.FunctionDef) and n.name == name]
        return self._run(path, found, names)[name]

    def statement(self, path: str, of: str, words: str, names: Mapping[str, object]) -> None:
        """Run the one outermost `if` of one of its methods whose condition has these words."""
        owner, method = of.split(".")
        owners = [n for n in self.tree(path).body if isinstance(n, ast.ClassDef) and n.name == owner]
        methods = [n for each in owners for n in each.body if isinstance(n, ast.FunctionDef) and n.name == method]
        (found,) = [n for each in methods for n in each.body if isinstance(n, ast.If) and words in ast.unparse(n.test)]
        self._run(path, [found], names)

    def module(self, path: str, others: Mapping[str, Mapping[str, object]]) -> ModuleType:
        """Run one of its files; `others` are the contents of modules that it imports."""
        made = ModuleType(path.removesuffix(".py").replace("/", "."))
        with pytest.MonkeyPatch.context() as patch:
            for name, held in others.items():
                other = ModuleType(name)
                vars(other).update(held)
                patch.setitem(sys.modules, name, other)
            patch.setitem(sys.modules, made.__name__, made)  # Its dataclasses resolve names there.
            exec(compile(self.source(path), f"{path} at {self.name}", "exec"), made.__dict__)
        return made

    def source(self, path: str) -> str:
        git = ["git", "-C", str(self.history)]
        if subprocess.run(
            [*git, "cat-file", "-e", f"{self.name}^{{commit}}"], check=False, capture_output=True
        ).returncode:
            pytest.skip(f"vllm-ascend.git has no {self.name}: fetch its tags and refs/pull/*/head")
        command = [*git, "show", f"{self.name}:vllm_ascend/{path}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def tree(self, path: str) -> ast.Module:
        return ast.parse(self.source(path))

    def _run(self, path: str, body: list[ast.stmt], names: Mapping[str, object]) -> dict[str, Any]:
        space: dict[str, Any] = {"torch": torch, "__name__": "released", **names}
        flags = __future__.annotations.compiler_flag
        module = ast.fix_missing_locations(ast.Module(body, []))
        exec(compile(module, f"{path} at {self.name}", "exec", flags=flags), space)
        return space
