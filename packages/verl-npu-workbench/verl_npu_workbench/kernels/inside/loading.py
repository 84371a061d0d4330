"""Reads a source file's kernels one statement at a time, without importing the package that contains the file.

Triton and the standard library are imported. Modules of the same source tree are read in the same way when one of
their names is needed. Placeholders stand in for all other modules (`strangers`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import triton
import triton.language as tl

from .guessing import Heuristic
from .strangers import Stranger

_REEXPORTS = {"triton": triton, "tl": tl, "HAS_TRITON": True}
"""Names under which packages such as vLLM re-export Triton."""
_BODIES = ("body", "orelse", "finalbody")


class Tuned:
    """The result of our replacements for `triton.autotune` and `triton.heuristics`. The replacements keep their
    arguments and tune nothing."""

    def __init__(self, fn: object, configs: list[object], values: dict[str, Heuristic]) -> None:
        self.fn, self.configs, self.values = fn, configs, values
        self.__name__ = getattr(fn, "__name__", "")

    def __getitem__(self, _grid: object) -> Stranger:
        return Stranger("launch")


@dataclass
class Loaded:
    """A source file that has been read."""

    path: Path
    module: ModuleType
    tree: ast.Module
    failed: dict[str, str] = field(default_factory=dict)
    """From each name whose definition failed to the reason."""


class Loader:
    """Reads the files of a source tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loaded: dict[Path, Loaded] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}
        stand_in_for_tuning()

    def load(self, path: Path) -> Loaded:
        """Read a file. Raise SyntaxError, OSError, or UnicodeDecodeError if it cannot be read."""
        path = path.resolve()
        if path in self.loaded:
            return self.loaded[path]
        tree = ast.parse(path.read_bytes(), str(path))
        name = self.module_name(path)
        module = ModuleType(name)
        module.__file__ = str(path)
        module.__package__ = name if path.name == "__init__.py" else name.rpartition(".")[0]
        vars(module)["__builtins__"] = self._builtins
        found = self.loaded[path] = Loaded(path, module, tree)
        # dataclasses and typing look up a class's module there.
        sys.modules.setdefault(name, module)
        for node in tree.body:
            self._execute(found, node)
        return found

    def module_name(self, path: Path) -> str:
        """Return the dotted name of a file below the root."""
        parts = path.resolve().relative_to(self.root.resolve()).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    def _execute(self, found: Loaded, node: ast.stmt) -> None:
        if _is_main_guard(node) or isinstance(node, (ast.Expr, ast.Assert)):
            return
        names = [name for name in bound(node) if name not in vars(found.module)]
        try:
            self._run(found, node)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(node, ast.FunctionDef) and self._without_others(found, node):
                return
            for name in names:
                found.failed[name] = why
                vars(found.module).setdefault(name, Stranger(_named(node, name)))

    def _run(self, found: Loaded, node: ast.stmt) -> None:
        code = compile(ast.Module([node], []), str(found.path), "exec", dont_inherit=True)
        # The file's own output must not mix with the answer on stdout.
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, vars(found.module))

    def _without_others(self, found: Loaded, node: ast.FunctionDef) -> bool:
        """Define a kernel with only its `jit` decorator, so without its configurations. Return True if that worked."""
        own = [each for each in node.decorator_list if is_jit(each)]
        if not own or len(own) == len(node.decorator_list):
            return False
        bare = ast.FunctionDef(**{**vars(node), "decorator_list": own})
        try:
            self._run(found, bare)
        except Exception:
            return False
        return True

    def _import(
        self,
        name: str,
        scope: Mapping[str, str] | None = None,
        _locals: object = None,
        wanted: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        whole = name
        if level:
            base = (scope or {}).get("__package__", "").split(".")
            base = base[: len(base) - level + 1]
            whole = ".".join([*base, name] if name else base)
        top = whole.partition(".")[0]
        if top == "triton" or top in sys.stdlib_module_names:
            return self._real(whole, wanted)
        if self._file(whole.split(".")) is None and not self.root.joinpath(*whole.split(".")).is_dir():
            return _strange_module(whole if wanted else top, whole)
        if not wanted:
            return _strange_module(top, whole)
        module = ModuleType(whole)
        for each in wanted:
            if each == "*":
                inner = self._module(whole)
                vars(module).update({k: v for k, v in vars(inner).items() if not k.startswith("__")})
                public = getattr(inner, "__all__", None)
                own = [each for each in vars(inner) if not each.startswith("_")]
                vars(module)["__all__"] = public if isinstance(public, (list, tuple)) else own
            else:
                setattr(module, each, self._of(whole, each))
        return module

    def _real(self, whole: str, wanted: Sequence[str]) -> ModuleType:
        module = importlib.import_module(whole)
        for each in wanted or ():
            if each != "*" and not hasattr(module, each):
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"{whole}.{each}")
        return module if wanted else sys.modules[whole.partition(".")[0]]

    def _file(self, parts: list[str]) -> Path | None:
        base = self.root.joinpath(*parts)
        return next(
            (each for each in (base.with_name(base.name + ".py"), base / "__init__.py") if each.is_file()), None
        )

    def _module(self, whole: str) -> ModuleType:
        path = self._file(whole.split("."))
        return self.load(path).module if path else ModuleType(whole)

    def _of(self, whole: str, name: str) -> object:
        inner = self._file([*whole.split("."), name])
        if inner is not None:
            return self.load(inner).module
        found = getattr(self._module(whole), name, None)
        if found is None:
            return _REEXPORTS.get(name, Stranger(f"{whole}.{name}"))
        return _REEXPORTS[name] if name in _REEXPORTS and isinstance(found, Stranger) else found


def _strange_module(shown: str, whole: str) -> ModuleType:
    module = ModuleType(shown)
    module.__getattr__ = lambda name: _REEXPORTS.get(name, Stranger(f"{whole}.{name}"))  # type: ignore[method-assign]
    vars(module)["__path__"], vars(module)["__all__"] = [], []
    return module


def stand_in_for_tuning() -> None:
    """Replace autotune and heuristics by functions that only keep their arguments, because there is no device to tune
    on."""

    def autotune(configs: Iterable[object], key: object = None, **_more: object) -> Callable[[object], Tuned]:
        return lambda fn: Tuned(fn, list(configs) if not isinstance(configs, Stranger) else [], {})

    def heuristics(values: Mapping[str, Heuristic]) -> Callable[[object], Tuned]:
        return lambda fn: Tuned(fn, [], dict(values))

    for module in (
        triton,
        importlib.import_module("triton.runtime.autotuner"),
        importlib.import_module("triton.runtime"),
    ):
        vars(module)["autotune"], vars(module)["heuristics"] = autotune, heuristics


def is_jit(decorator: ast.expr) -> bool:
    """Return whether a decorator is Triton's `jit`, whatever module it is imported from, with or without options."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr == "jit" and ast.unparse(called.value).rpartition(".")[2] == "triton"
    return isinstance(called, ast.Name) and called.id == "triton_jit"


def bound(node: ast.stmt) -> list[str]:
    """Return the names that a module-level statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.partition(".")[0] for each in node.names]
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    inner = [each for part in _BODIES for each in getattr(node, part, [])]
    inner += [each for handler in getattr(node, "handlers", []) for each in handler.body]
    return [*names, *(name for each in inner if isinstance(each, ast.stmt) for name in bound(each))]


def _named(node: ast.stmt, name: str) -> str:
    """Return the full name of a name that a statement failed to bind. If the name is imported, the full name includes
    its module."""
    of = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
    names = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []
    whole = next((f"{of}{each.name}" for each in names if (each.asname or each.name) == name), name)
    return whole if re.split(r"[. ]", whole)[-1] == name else f"{whole} as {name}"


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "__main__" in ast.unparse(node.test)
