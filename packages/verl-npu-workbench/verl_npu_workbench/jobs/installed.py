"""Installed modules and user files that upstream searches for a class or a function by name."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from verl_npu.registry.source.definition import bound_names
from verl_npu.registry.source.tree import Target

from .values import Failed, Foreign, Module, Unknown

HERE = "in this environment"


def is_file(path: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.endswith(".py") and Path(path).is_absolute() and Path(path).is_file()
    return False


def has_member(module: Module, name: str) -> bool:
    """Return whether a module binds a name.

    Raises:
        Unknown: the module's source does not show whether the module binds the name.
    """
    tree = module.tree
    try:
        text = Path(module.name).read_bytes() if tree is None else tree.read(module.name)
        bound = bound_names(ast.parse(text or "").body) if tree is None else tree.nodes(Target(module.name, name))
    except (OSError, SyntaxError, ValueError) as error:
        raise Unknown from error
    if text is None:
        raise Unknown
    if (name in bound if tree is None else bound) or (tree is not None and name in tree.modules_in(module.name)):
        return True
    if re.search(rb"import \*|__getattr__|globals\(|exec\(|sys\.modules|setattr\(", text):
        raise Unknown
    return False


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the text to append to an error message about a missing name: a similar name or, if there is none, a note
    that the name is missing in this environment."""
    return "".join(f", but {each}" for each in get_close_matches(name, names, n=1, cutoff=0.8)) or f" {HERE}"


def member_of(module: Module, name: str, call: ast.Call) -> object:
    """Return a stand-in for a class of a module that is installed on this machine. Raise Failed if the module does not
    define the name, and Unknown if the source does not show whether the module defines the name."""
    if not has_member(module, name):
        near = did_you_mean(
            name, bound_names(parsed.body) if module.tree and (parsed := module.tree.parse(module.name)) else ()
        )
        raise Failed("AttributeError", f"module {module.name} has no attribute {name}{near}", call)
    if module.tree is None:
        raise Unknown
    return Foreign(module, name)
