"""The values that `asserted` follows through upstream's source: settings, upstream's objects, and unknown values."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree, Target

from .settings import Settings

TYPES: Mapping[str, type] = {each.__name__: each for each in (bool, int, float, str, dict, list)}


class Unknown(Exception):
    """Raised when a value does not follow from the configuration alone."""


class Failed(Unknown):
    """Raised when Python would raise an error for an expression with known values."""

    def __init__(self, kind: str, message: object, node: ast.AST) -> None:
        super().__init__(f"{kind}: {message}: {ast.unparse(node)}")


class ListConfig(list[object]):
    """A list in the configuration. Upstream's code may have converted it to a plain list."""


class DictConfig(dict[object, object]):
    """A dictionary in the configuration. Upstream's code may have converted it to a plain dictionary."""


PLAIN = (str, bool, int, float, list, tuple, dict, type(None), ListConfig, DictConfig)
ENDS = (Unknown, RecursionError)
"""The errors that end the interpretation of a call."""
UNKNOWN = object()
"""Stands for an unknown value."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the configuration."""

    values: dict[str, object]
    """The values of the whole configuration, by full key."""
    key: str = ""
    """The full key of the section."""

    def full(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def __contains__(self, name: str) -> bool:
        key = self.full(name)
        # An entry with an unknown value may have been deleted.
        if self._is_lost(key) or self.values.get(key) is UNKNOWN:
            raise Unknown
        return key in self.values or any(other.startswith(f"{key}.") for other in self.values)

    def _is_lost(self, key: str) -> bool:
        """Return whether code has replaced or changed a section that contains an entry."""
        above = ["", *(key[: dot.start()] for dot in re.finditer(r"\.", key))]
        return any(self.values.get(each, {}) != {} for each in above)

    def names(self) -> list[str]:
        start = self.full("")
        if self._is_lost(start):
            raise Unknown
        inside = (key.removeprefix(start) for key in self.values if key.startswith(start))
        return list(dict.fromkeys(each.partition(".")[0] for each in inside))

    def set(self, name: str, value: object) -> None:
        """Set an entry. A section is copied."""
        key = self.full(name)
        for old in [other for other in self.values if other.startswith(f"{key}.")]:
            del self.values[old]
        if not isinstance(value, Section):
            self.values[key] = value
            return
        self.values[key] = {}
        for each in value.names():
            Section(self.values, key).set(each, value.get(each))

    def get(self, name: str) -> object:
        key = self.full(name)
        value = UNKNOWN if self._is_lost(key) else self.values.get(key, {})
        # A section may have an entry of its own, without a value.
        if value == {} and any(other.startswith(f"{key}.") for other in self.values):
            return Section(self.values, key)
        if key not in self.values:
            return UNKNOWN
        # Upstream's code may change its lists.
        if type(value) in (list, dict):
            value = self.values[key] = _configured(value)
        # Only the running job can resolve the rest of the interpolations; `???` marks a missing value.
        return UNKNOWN if isinstance(value, str | list) and ("${" in str(value) or value == "???") else value


def _configured(value: object) -> object:
    if isinstance(value, dict):
        return DictConfig((name, _configured(each)) for name, each in value.items())
    return ListConfig(map(_configured, value)) if isinstance(value, list) else value


class Registry(dict[object, object]):
    """A registry dictionary in upstream's code. If a lookup does not find a name, upstream's registrations are
    evaluated one by one until one of them adds the name. A dictionary in the registry is filled in the same way."""

    registrations: Generator[None, None, None]
    """The registrations that have not been evaluated yet."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(name in self.keys() for _unused in self._following())

    def __iter__(self) -> Iterator[object]:
        for _unused in self._following():
            pass
        return super().__iter__()

    def __setitem__(self, name: object, value: object) -> None:
        if type(value) is dict:
            value = Registry(value)
            value.registrations = self.registrations
        super().__setitem__(name, value)

    def _following(self) -> Iterator[None]:
        # A registration sees only the earlier ones.
        if inspect.getgeneratorstate(self.registrations) != inspect.GEN_RUNNING:
            for _unused in self.registrations:
                if is_spoiled(self):
                    raise Unknown
                yield


@dataclass(frozen=True, slots=True)
class Class:
    """A class in upstream's code."""

    target: Target


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration, or a torch data type. It never equals a value in a configuration."""

    of: str
    value: object


@dataclass(frozen=True, slots=True)
class Function:
    """A function in upstream's code. A nested function also has the local names of the functions around it."""

    module: str
    node: ast.FunctionDef
    names: dict[str, object]


@dataclass(frozen=True, slots=True)
class Object:
    """An instance of an upstream class."""

    of: Target
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Module:
    """A module that is installed on this machine, or the module in a user's file."""

    name: str
    tree: SourceTree | None
    """The source of the module's package. None for a file."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A class in a module that is installed on this machine."""

    module: Module
    name: str


Names = dict[str, object]


def same(one: object, other: object) -> bool:
    if isinstance(one, Function) and isinstance(other, Function):
        raise Unknown
    return one is other or (isinstance(one, Class | Member) and one == other)


def section(settings: Settings, key: str = "") -> Section:
    """Return a section of the configuration, or the whole configuration, as an argument for an interpreted
    function."""
    return Section(dict(settings.values), key)


def instance(of: Target, attributes: Mapping[str, object], before: object = None) -> object:
    """Return an instance of an upstream class with the given attributes. If `before` is an earlier state of the
    instance, attributes that are not given keep their values from `before`. All remaining attributes are unknown."""
    return Object(of, {**(before.attributes if isinstance(before, Object) else {}), **attributes})


def attribute(of: object, *names: str) -> object:
    """Follow a chain of attribute names, as in `of.a.b.c`, and return the last attribute."""
    for name in names:
        of = of.attributes.get(name, UNKNOWN) if isinstance(of, Object) else UNKNOWN
    return of


def spoil(value: object) -> None:
    """Mark the contents of a list or a dictionary, and of everything inside it, as unknown. The change is visible
    through every name that refers to one of these objects."""
    parts: list[object] = []
    if isinstance(value, dict):
        parts = [*value.values()]
        value.clear()
        value[UNKNOWN] = UNKNOWN
    elif isinstance(value, list):
        parts = [*value]
        value[:] = [UNKNOWN]
    for each in value if isinstance(value, tuple) else parts:
        spoil(each)


def is_spoiled(value: object) -> bool:
    return isinstance(value, dict | list) and UNKNOWN in (value.keys() if isinstance(value, dict) else value[:1])


def is_partly_unknown(value: object) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return value is UNKNOWN or isinstance(value, Object) or any(map(is_partly_unknown, parts))


def computed(node: ast.AST, function: Callable[..., Any], *values: Any) -> Any:
    """Call a Python function with `values`, and return its result.

    If the call raises an error and all values have plain types, raise Failed, because upstream's code would raise the
    same error. If the call raises an error and a value has another type, raise Unknown.
    """
    try:
        return function(*values)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        if all(type(each) in PLAIN for each in values):
            raise Failed(type(error).__name__, error, node) from error
        raise Unknown from error


def refuse_text(node: ast.Compare, ops: Sequence[ast.cmpop], values: Sequence[object]) -> None:
    """Raise Failed if an ordering operator, such as `<`, compares an unknown value with a setting whose value is a
    string. Upstream compares settings only with numbers, so the comparison would fail."""
    sides = zip((node.left, *node.comparators), values, strict=True)
    texts = [repr(value) for side, value in sides if isinstance(value, str) and isinstance(side, ast.Attribute)]
    if texts and all(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in ops):
        raise Failed("TypeError", _("upstream needs a number, not the string {text}").format(text=texts[0]), node)


def is_instance(value: object, kinds: ast.expr) -> bool:
    named = {each.id for each in ast.walk(kinds) if isinstance(each, ast.Name)}
    if named == {"Enum"} and isinstance(value, str):
        return False
    if value is None and any(isinstance(each, ast.Constant) and each.value is None for each in ast.walk(kinds)):
        return True
    if named >= {"list", "ListConfig"} and isinstance(value, list):
        return True
    known = named - {"ListConfig", "DictConfig"}
    if value is UNKNOWN or isinstance(value, Section) or not TYPES.keys() >= known:
        raise Unknown
    if isinstance(value, ListConfig | dict) and known & {"list", "dict"}:
        raise Unknown
    return isinstance(value, tuple(TYPES[name] for name in known))
