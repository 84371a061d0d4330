"""Which keys MindSpeed's and Megatron's code reads, from the source; neither is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ....errors import SourceError

__all__ = ["attributes_read", "keys_read", "literal", "parse", "process_keys"]

# Megatron's own get_args is left out: verl never initialises megatron.training, so it has no arguments.
_GETTERS = ("get_full_args", "get_mindspeed_args")
# How MindSpeed and Megatron call what holds the arguments or a model's configuration. MindSpeed makes each key that it
# is given an attribute of both.
_HOLDERS = frozenset(
    {"args", "_args", "global_args", "full_args", "mindspeed_args", "config", "cfg", "transformer_config"}
)


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a source file. Raises SourceError if it is none."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise SourceError(
            subject=str(path),
            expected="a source file of MindSpeed or Megatron",
            found=f"{type(error).__name__}: {error}",
            fix="give the folder of the package itself, for example MindSpeed/mindspeed",
        ) from error


def keys_read(*packages: Path) -> set[str]:
    """Return what the code in these folders reads from arguments and configurations, wherever it gets these from."""
    keys: set[str] = set()
    for path in (path for package in packages for path in sorted(package.rglob("*.py"))):
        tree = parse(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _holds(node.value):
                keys.add(node.attr)
            elif isinstance(node, ast.Call) and (key := _asked(node)):
                keys.add(key)
    return {key for key in keys if key.isidentifier() and not key.startswith("__")}


def _holds(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _HOLDERS
    if isinstance(node, ast.Attribute):
        return node.attr in _HOLDERS
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in (*_GETTERS, "get_args")


def _asked(call: ast.Call) -> str:
    """Return the key of getattr(args, "key"), hasattr(args, "key") or args.get("key"); empty if it is none of them."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name in ("getattr", "hasattr") and len(call.args) > 1 and _holds(call.args[0]):
        key = literal(call.args[1])
        return key if isinstance(key, str) else ""
    return ""


def literal(node: ast.expr | None) -> object:
    """Return the value of a literal; None if it is none."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def attributes_read(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Return the attributes that `node` reads from the variables `names`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in names:
            yield inner.attr
        elif (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Name)
            and inner.func.id in ("getattr", "hasattr")
            and len(inner.args) > 1
            and isinstance(inner.args[0], ast.Name)
            and inner.args[0].id in names
            and isinstance(name := literal(inner.args[1]), str)
        ):
            yield name


def process_keys(mindspeed: Path) -> set[str]:
    """Return the keys that code which the features import reads from the arguments of the process."""
    keys: set[str] = set()
    for path in _reachable(mindspeed):
        tree = parse(path)
        getters = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in _GETTERS
        }
        for function in ast.walk(tree) if getters else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                keys |= set(attributes_read(function, _holders(function, getters)))
                keys |= {
                    n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute) and _gets(n.value, getters)
                }
    return keys


def _reachable(mindspeed: Path) -> list[Path]:
    """Return the files that the features import, directly or not, without the features themselves."""
    waiting = sorted((mindspeed / "features_manager").rglob("*.py"))
    seen = set(waiting)
    for path in waiting:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mindspeed."):
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names if alias.name.startswith("mindspeed.")]
            else:
                continue
            for module in modules:
                base = mindspeed.joinpath(*module.split(".")[1:])
                for file in (base.with_suffix(".py"), base / "__init__.py"):
                    if file.is_file() and file not in seen:
                        seen.add(file)
                        waiting.append(file)
    return [path for path in waiting if "features_manager" not in path.parts]


def _holders(function: ast.AST, getters: set[str]) -> set[str]:
    """Return the local variables that hold the arguments of the process."""
    assigned = (n for n in ast.walk(function) if isinstance(n, ast.Assign) and _gets(n.value, getters))
    return {target.id for n in assigned for target in n.targets if isinstance(target, ast.Name)}


def _gets(node: ast.expr, getters: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in getters
