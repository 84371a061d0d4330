"""Copies of upstream's functions in which an import or a constant is another one.

An import inside a function, or a constant in its body, cannot be changed from outside, and our own copy of the whole
function would drift with every revision. If what is to be replaced is not there, an error is raised and nothing runs.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.abc import InspectLoader
from types import CodeType, FunctionType, ModuleType
from typing import TypeVar, cast

from ...errors import ApplyError
from ...registry.apply.replacement import clone

Function = TypeVar("Function", bound=Callable[..., object])


def with_import(function: Function, source: str, ours: str) -> Function:
    """Return a copy of `function` in which `from source import …` imports from the module `ours`.

    Raises ApplyError if the function does not import `source`.
    """
    return cast(Function, _exchanged(_plain(function), source, ours, names=True))


def with_constant(function: Function, constant: str, ours: str) -> Function:
    """Return a copy of `function` in which the string `constant` is replaced by `ours`.

    Raises ApplyError if the body does not contain `constant`.
    """
    return cast(Function, _exchanged(_plain(function), constant, ours, names=False))


def import_module(name: str, source: str, ours: str) -> ModuleType:
    """Import the module `name`; its `from source import …`, at any level, imports from the module `ours`.

    A module that has been imported already is returned as it is. Raises ApplyError if the module does not import
    `source`, and as any import does ImportError if there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"no module named {name!r} with source", name=name)
    loader = cast(InspectLoader, spec.loader)
    code = cast(CodeType, loader.get_code(name))
    loader.get_code = lambda fullname: _in_code(code, source, ours, names=True, where=fullname)  # type: ignore[method-assign]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)
    return module


def _plain(function: Callable[..., object]) -> FunctionType:
    plain = inspect.unwrap(function)
    if plain is not function or not isinstance(plain, FunctionType):
        raise ApplyError(
            subject=getattr(function, "__qualname__", repr(function)),
            expected="upstream's plain function",
            found=f"{function!r}, because another package has wrapped it",
            fix="load only one of the two packages",
            override="VERL_NPU_DISABLE=attention",
        )
    return plain


@functools.lru_cache(maxsize=256)
def _exchanged(function: FunctionType, theirs: str, ours: str, *, names: bool) -> FunctionType:
    code = _in_code(function.__code__, theirs, ours, names=names, where=function.__qualname__)
    made = clone(function, code=code)
    functools.update_wrapper(made, function)
    return made


def _in_code(code: CodeType, theirs: str, ours: str, *, names: bool, where: str) -> CodeType:
    made, count = _walk(code, theirs, ours, names)
    if not count:
        raise ApplyError(
            subject=where,
            expected=f"{'an import of' if names else 'the constant'} {theirs!r}",
            found="none",
            fix="run `verl-npu check` against this installation",
            override="VERL_NPU_DISABLE=attention",
        )
    return made


def _walk(code: CodeType, theirs: str, ours: str, names: bool) -> tuple[CodeType, int]:
    """Return the code with every occurrence replaced, in nested functions as well, and how many there were."""
    count = 0

    def inner(constant: object) -> object:
        nonlocal count
        if isinstance(constant, CodeType):
            made, inside = _walk(constant, theirs, ours, names)
            count += inside
            return made
        if not names and type(constant) is str and constant == theirs:
            count += 1
            return ours
        return constant

    constants = tuple(inner(constant) for constant in code.co_consts)
    count += code.co_names.count(theirs) if names else 0
    exchanged = tuple(ours if names and name == theirs else name for name in code.co_names)
    return code.replace(co_consts=constants, co_names=exchanged), count
