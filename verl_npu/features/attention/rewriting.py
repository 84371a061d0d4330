"""Copies of upstream's functions with a replaced import or constant.

An import or a constant inside a function's body cannot be changed from outside, and a hand-written copy of the
function would soon differ from upstream's. If a function does not contain the import or the constant, we raise an
error and run nothing.
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
    """Return a copy of `function` whose `from source import …` imports from the module `ours` instead.

    Raises ApplyError if the function does not import from `source`.
    """
    return cast(Function, _rewritten(_plain(function), source, ours, names=True))


def with_constant(function: Function, constant: str, ours: str) -> Function:
    """Return a copy of `function` in which the string `ours` replaces `constant`.

    Raises ApplyError if the body does not contain `constant`.
    """
    return cast(Function, _rewritten(_plain(function), constant, ours, names=False))


def import_module(name: str, source: str, ours: str) -> ModuleType:
    """Import the module `name`. Each `from source import …` in the module imports from the module `ours` instead.

    If the module is already imported, return it as it is. Raises ApplyError if the module does not import from
    `source`, and ImportError if there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"no module named {name!r} with source", name=name)
    loader = cast(InspectLoader, spec.loader)
    code = cast(CodeType, loader.get_code(name))
    loader.get_code = lambda fullname: _rewritten_code(code, source, ours, names=True, where=fullname)  # type: ignore[method-assign]
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
            found=f"verl-npu cannot rewrite this function, because another package has wrapped it: {function!r}",
            fix="do not load that package together with verl-npu",
            override="VERL_NPU_DISABLE=attention",
        )
    return plain


@functools.lru_cache(maxsize=256)
def _rewritten(function: FunctionType, theirs: str, ours: str, *, names: bool) -> FunctionType:
    code = _rewritten_code(function.__code__, theirs, ours, names=names, where=function.__qualname__)
    made = clone(function, code=code)
    functools.update_wrapper(made, function)
    return made


def _rewritten_code(code: CodeType, theirs: str, ours: str, *, names: bool, where: str) -> CodeType:
    made, count = _replace_all(code, theirs, ours, names)
    if not count:
        raise ApplyError(
            subject=where,
            found=f"this code no longer {'imports' if names else 'contains the constant'} {theirs!r}, which verl-npu "
            "replaces",
            fix="run `verl-npu check` in this environment",
            override="VERL_NPU_DISABLE=attention",
        )
    return made


def _replace_all(code: CodeType, theirs: str, ours: str, names: bool) -> tuple[CodeType, int]:
    """Replace every occurrence in a code object and in its nested functions. Return the new code and the number of
    occurrences."""
    count = 0

    def inner(constant: object) -> object:
        nonlocal count
        if isinstance(constant, CodeType):
            made, inside = _replace_all(constant, theirs, ours, names)
            count += inside
            return made
        if not names and type(constant) is str and constant == theirs:
            count += 1
            return ours
        return constant

    constants = tuple(inner(constant) for constant in code.co_consts)
    count += code.co_names.count(theirs) if names else 0
    replaced = tuple(ours if names and name == theirs else name for name in code.co_names)
    return code.replace(co_consts=constants, co_names=replaced), count
