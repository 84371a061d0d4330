"""Puts things over the live targets of patches, one at a time, and collects the registry's answers.

    PYTHONPATH=TREE python -m tests.pins.live [MODULE…]

It imports verl from TREE, and prints the answers as JSON by target and way; with MODULEs, only for targets in modules
whose names begin so. Stand-ins replace packages that this environment lacks, so that upstream's modules can be
imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import wrapt
from testing.interpreter import python

from verl_npu.errors import ApplyError
from verl_npu.features import CONVENTIONS, UPSTREAMS, load, locks_folder
from verl_npu.registry.apply.replacement import build, check_live
from verl_npu.registry.apply.slots import MISSING, Slot, find_slot
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.patch import Action, Patch
from verl_npu.registry.source.definition import Kind
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

PROJECT = Path(__file__).resolve().parents[2]

ABSENT = (
    "flash_attn",
    "mbridge",
    "megatron",
    "megatron_kl_loss",
    "mindspeed",
    "msgspec",
    "qwen_vl_utils",
    "sglang",
    "transformer_engine",
    "vllm",
    "vllm_ascend",
)
"""Packages that get a stand-in if they are not installed: upstream's modules for these are imported, but never run."""


@dataclass(frozen=True)
class Said:
    """The answer for one target with something over it."""

    target: str
    make: str
    """The kind of the target: a function, one that is imported, a value, or an addition."""
    way: str
    answer: str
    """`accepted`, or the objection."""


class Other:
    def __call__(self, *args: object, **kwargs: object) -> None:
        return None


def _other(*args: object, **kwargs: object) -> None:
    return None


def _passing(function: Any) -> Any:
    """Return a wrapper of the function's own kind that passes everything on."""
    if inspect.isasyncgenfunction(function):

        async def inner(*args: object, **kwargs: object) -> Any:
            async for one in function(*args, **kwargs):
                yield one
    elif inspect.iscoroutinefunction(function):

        async def inner(*args: object, **kwargs: object) -> Any:
            return await function(*args, **kwargs)
    elif inspect.isgeneratorfunction(function):

        def inner(*args: object, **kwargs: object) -> Any:
            yield from function(*args, **kwargs)
    else:

        def inner(*args: object, **kwargs: object) -> Any:
            return function(*args, **kwargs)

    return inner


def _named(function: Any) -> Any:
    return functools.wraps(function)(_passing(function))


def _yielding(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: object, **kwargs: object) -> Any:
        yield function(*args, **kwargs)

    return inner


def _toggled(function: Any) -> Any:
    """Return a function that is awaited if the target is not, and the other way round."""
    if inspect.iscoroutinefunction(function):
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

    @functools.wraps(function)
    async def inner(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return inner


def _called_otherwise(function: Any) -> Any:
    @functools.wraps(function)
    def inner(rows_new: object, sort_new: bool = True) -> object:
        return function()

    return _awaited(inner, function)


def _awaited(inner: Any, function: Any) -> Any:
    """Return `inner` as a function of the same kind as `function`, so that only its signature differs."""
    if not inspect.iscoroutinefunction(function):
        return inner

    @functools.wraps(function)
    async def awaited(rows_new: object, sort_new: bool = True) -> object:
        return inner(rows_new, sort_new)

    return awaited


def _gutted(function: Any) -> Any:
    """Return a function of the same name, kind and signature that does nothing."""
    signature = inspect.signature(inspect.unwrap(function))
    bare = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None)
        for p in signature.parameters.values()
    ]
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    made: dict[str, Any] = {}
    exec(f"{word} gutted{inspect.Signature(bare)}:\n    return None", made)
    made["gutted"].__name__, made["gutted"].__qualname__ = function.__name__, function.__qualname__
    made["gutted"].__module__ = function.__module__
    return made["gutted"]


def _registered(function: Any) -> Any:
    # Importing verl here first: it patches transformers meanwhile, whose own targets come before.
    decorator = sys.modules["verl.single_controller.base.decorator"]
    return decorator.register(dispatch_mode=decorator.Dispatch.RANK_ZERO)(function)


def _remote(function: Any) -> Any:
    import ray

    return ray.remote(function)


Way = Callable[[Any], Any]
WAYS: dict[str, Way] = {
    "reassigned: another function": lambda function: _other,
    "reassigned: a function of no name": lambda function: lambda *args, **kwargs: None,
    "reassigned: a class": lambda function: Other,
    "reassigned: an object that can be called": lambda function: Other(),
    "reassigned: a builtin": lambda function: len,
    "reassigned: None": lambda function: None,
    "wrapped: passes everything on": _named,
    "wrapped: wrapt's proxy, which passes everything on": lambda function: wrapt.FunctionWrapper(
        function, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs)
    ),
    "wrapped: passes everything on, without its name": _passing,
    "wrapped: a partial": lambda function: functools.partial(function),
    "wrapped: called otherwise": _called_otherwise,
    "wrapped: yields": _yielding,
    "wrapped: awaited, or no longer": _toggled,
    "decorated: contextmanager": contextlib.contextmanager,
    "decorated: asynccontextmanager": contextlib.asynccontextmanager,
    "decorated: lru_cache": functools.lru_cache(maxsize=None),
    "decorated: singledispatch": functools.singledispatch,
    "decorated: cached_property": functools.cached_property,
    "decorated: property": property,
    "decorated: staticmethod": staticmethod,
    "decorated: classmethod": classmethod,
    "decorated: register": _registered,
    "decorated: ray.remote": _remote,
    "gutted: the same name and signature": _gutted,
}
AS_IT_IS = "as it is"
FITTING = (AS_IT_IS, "wrapped: passes everything on", "wrapped: wrapt's proxy, which passes everything on")
"""The ways after which the target is called as before."""
EITHER = ("wrapped: passes everything on, without its name",)
"""Ways after which the target is called as before too, but the registry can tell only for targets that upstream
decorates itself."""
IN_PLACE = "gutted: its own code replaced"
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def fits(said: Said) -> bool:
    """Return whether the answer is right. No source says what a value is."""
    return said.make == "value" or said.way in EITHER or (said.answer == "accepted") is (said.way in FITTING)


def _over(value: Any, way: Way) -> Any:
    """Put something over a target; in a descriptor the function is replaced, and the descriptor stays."""
    if isinstance(value, staticmethod | classmethod):
        return type(value)(way(value.__func__))
    if isinstance(value, property):
        return property(way(value.fget), value.fset, value.fdel)
    return way(value)


@dataclass(frozen=True)
class Place:
    """A target in this process."""

    patch: Patch
    slot: Slot
    module: types.ModuleType
    tree: SourceTree

    @property
    def make(self) -> str:
        if self.patch.action is Action.ADD:
            return "addition"
        definition = self.tree.definition(self.patch.target)
        if self.patch.action is Action.SET or definition is None or definition.kind is Kind.ASSIGNED:
            return "value"
        return "imported" if definition.kind is Kind.IMPORTED else "function"

    def answer(self) -> str:
        try:
            check_live(self.patch, self.slot, self.tree, self.module, CONVENTIONS)
            build(self.patch, self.slot.read(), self.slot)
        except ApplyError as error:
            return str(error)
        return "accepted"

    def ask(self) -> Iterator[Said]:
        """Yield the answer to each way that is possible, and to the target as it is."""
        before = self.slot.read()
        yield self._said(AS_IT_IS)
        for name, way in WAYS.items():
            if self.make in ("addition", "value") and not name.startswith("reassigned"):
                continue
            if isinstance(before, _DESCRIPTORS) and name.startswith("decorated"):
                continue
            try:
                after = _over(before, way) if before is not MISSING else way(None)
            except (TypeError, ValueError, AttributeError, AssertionError, KeyError):
                continue  # Python, or the decorator, refuses it itself
            self.slot.write(after)
            try:
                yield self._said(name)
            finally:
                self.slot.write(before)
        function = None if before is MISSING else inspect.unwrap(_function(before))
        if self.make == "function" and isinstance(function, types.FunctionType) and not function.__closure__:
            code = function.__code__
            function.__code__ = _other.__code__
            try:
                yield self._said(IN_PLACE)
            finally:
                function.__code__ = code

    def _said(self, way: str) -> Said:
        return Said(str(self.patch.target), self.make, way, self.answer())


def _function(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


class _Anything(type):
    """A metaclass that makes each missing attribute another class."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name: str) -> type:
    return _Anything(name, (), {"__init__": lambda self, *args, **kwargs: None, "__call__": _other})


class _Version(importlib.metadata.Distribution):
    """A distribution with a version only, which all revisions of upstream accept."""

    version = "0.11.0"

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nVersion: {self.version}\n" if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that this environment lacks: each name in them is a class of its own."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        here = name.partition(".")[0] in self._packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if here else None

    def find_distributions(self, context: importlib.metadata.DistributionFinder.Context) -> Iterator[_Version]:
        """Yield the distribution that is asked for the package's version."""
        if (context.name or "").replace("-", "_") in self._packages:
            yield _Version()

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = _Version.version  # type: ignore[attr-defined]

        def find(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _anything(name)

        module.__getattr__ = find  # type: ignore[method-assign]


def told(*prefixes: str) -> dict[str, Any]:
    """Return the answers to everything that can be put over each target that is verified and importable here."""
    warnings.simplefilter("ignore")
    names = [package for upstream in UPSTREAMS for package in upstream.packages]
    features, tree = load(), SourceTree.installed(names)
    locks = {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}
    revisions, verdicts = judge(features, UPSTREAMS, tree, locks)
    lacking = frozenset(name for name in ABSENT if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Absent(lacking))
    # Upstream patches transformers by itself when it is imported.
    verified = [p for f in features for p in f if verdicts[p.id].state is State.PENDING]
    verified.sort(key=lambda patch: patch.target.package in UPSTREAMS[0].packages)
    said: list[Said] = []
    unknown: dict[str, str] = {}
    for patch in verified:
        if patch.action is Action.GUARD or not patch.target.module.startswith(prefixes or ""):
            continue
        try:
            module = importlib.import_module(patch.target.module)
        except Exception as error:
            unknown[str(patch.target)] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            continue
        said += Place(patch, find_slot(module, patch.target), module, tree).ask()
    return {"revision": str(revisions["verl"]), "said": [asdict(one) for one in said], "not imported": unknown}


@dataclass(frozen=True)
class Table:
    """The answers at one pin."""

    revision: str
    said: tuple[Said, ...]
    unknown: Mapping[str, str]
    """The targets whose modules could not be imported here, and why."""


def at(tree: Path, *prefixes: str) -> Table:
    """Ask in a process of its own, which imports verl from a folder, on two virtual NPUs."""
    variables = {"VIRTUAL_ASCEND": "2", "VERL_NPU": "off"}
    done = python(
        "-m", __name__, *prefixes, paths=[tree, PROJECT / "scripts"], clean=("VERL_NPU",), cwd=PROJECT, **variables
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return Table(found["revision"], tuple(Said(**one) for one in found["said"]), found["not imported"])


if __name__ == "__main__":
    kept, sys.stdout = sys.stdout, sys.stderr
    found = told(*sys.argv[1:])
    kept.write(json.dumps(found) + "\n")
    kept.flush()
    # Do not wait for threads that upstream's modules started when they were imported.
    os._exit(0)
