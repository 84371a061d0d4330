"""A function of upstream with one name or constant exchanged, the rest of it being upstream's own.

An import inside a function, or a constant in its middle, cannot be reached from outside; a copy of the function would
drift with every revision. What is exchanged must be there exactly as expected, else nothing runs.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["ExchangeError", "import_module", "with_constant", "with_import"]


class ExchangeError(RuntimeError):
    """The function does not hold what was to be exchanged."""


def with_import(function: Callable[..., Any], source: str, ours: str) -> Callable[..., Any]:
    """`function`, importing the module `ours` wherever it says `from source import …`.

    Raises ExchangeError where it does not import `source`.
    """
    return _exchanged(_plain(function), source, ours, names=True)


def with_constant(function: Callable[..., Any], constant: str, ours: str) -> Callable[..., Any]:
    """`function`, with the string `ours` wherever its body says `constant`.

    Raises ExchangeError where it does not.
    """
    return _exchanged(_plain(function), constant, ours, names=False)


def import_module(name: str, source: str, ours: str) -> ModuleType:
    """Import the module `name`, whose `from source import …` at any level imports `ours`; once, as any import.

    Raises ExchangeError where it does not import `source`, ImportError where there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        raise ImportError(f"no module named {name!r} with source", name=name)
    code = loader.get_code(name)
    loader.get_code = lambda fullname: _in_code(code, source, ours, names=True, where=fullname)
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


def _plain(function: Callable[..., Any]) -> FunctionType:
    plain = inspect.unwrap(function)
    if plain is not function or not isinstance(plain, FunctionType):
        raise ExchangeError(f"expected a plain function, found {function!r}: another package has wrapped it")
    return plain


@functools.lru_cache(maxsize=256)
def _exchanged(function: FunctionType, theirs: str, ours: str, *, names: bool) -> FunctionType:
    code = _in_code(function.__code__, theirs, ours, names=names, where=function.__qualname__)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    return made


def _in_code(code: CodeType, theirs: str, ours: str, *, names: bool, where: str) -> CodeType:
    made, count = _walk(code, theirs, ours, names)
    if not count:
        raise ExchangeError(
            f"{where}: expected {'an import of' if names else 'the constant'} {theirs!r}, found none; "
            "run `verl-npu check` against this installation"
        )
    return made


def _walk(code: CodeType, theirs: str, ours: str, names: bool) -> tuple[CodeType, int]:
    count = 0

    def inner(constant: Any) -> Any:
        nonlocal count
        if isinstance(constant, CodeType):
            constant, found = _walk(constant, theirs, ours, names)
            count += found
        elif not names and type(constant) is str and constant == theirs:
            count += 1
            return ours
        return constant

    constants = tuple(inner(constant) for constant in code.co_consts)
    count += code.co_names.count(theirs) if names else 0
    exchanged = tuple(ours if names and name == theirs else name for name in code.co_names)
    return code.replace(co_consts=constants, co_names=exchanged), count
