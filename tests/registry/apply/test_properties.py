"""Random modules, patch sets and failure points: whatever happens, a reverted target is as it was."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.registry.conftest import Package, Plugin
from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

NAMES = ("alpha", "beta", "gamma")
PLACES = ("{n}", "K.{n}", "K.Inner.{n}", "L.{n}")
WHY = {"why": "a reason", "how": "a way", "link": "none: a test"}


def source(module: int) -> str:
    """Return a module's source: functions, three kinds of methods, a subclass, and copies of another's functions."""
    methods = "\n".join(f"    def {n}(self):\n        return '{n}'" for n in NAMES)
    inner = methods.replace("    ", "        ", 1).replace("\n    ", "\n        ")
    functions = "\n".join(f"def {n}():\n    return '{n}'" for n in NAMES)
    copies = "from up.m0 import alpha as copied, K as Kind\n" if module else ""
    return f"{copies}{functions}\nclass K:\n{methods}\n    class Inner:\n{inner}\nclass L(K):\n    pass\n"


targets = st.tuples(st.integers(0, 2), st.sampled_from(PLACES), st.sampled_from(NAMES))
declared = st.lists(st.tuples(targets, st.sampled_from(["replace", "wrap", "add"])), min_size=1, max_size=8)


@contextmanager
def world() -> Iterator[tuple[Package, Plugin]]:
    before = set(sys.modules)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        package = Package(Path(folder) / "site")
        package.write("up", "")
        for module in range(3):
            package.write(f"up.m{module}", source(module))
        patch.syspath_prepend(str(package.root))
        plugin = Plugin(package, Path(folder) / "locks")
        try:
            yield package, plugin
        finally:
            for registry in plugin.registries:
                registry.deactivate()
            for name in set(sys.modules) - before:
                if name.partition(".")[0] == "up":
                    del sys.modules[name]


def declare(plugin: Plugin, patches: list[tuple[tuple[int, str, str], str]]) -> None:
    feature = plugin.feature("f")
    seen = set()
    for (module, place, name), action in patches:
        # Only a name that is missing can be added; L inherits everything, so its own keys are free.
        qualname = place.format(n=f"new_{name}" if action == "add" and not place.startswith("L.") else name)
        target = f"up.m{module}:{qualname}"
        if target in seen or (action != "add" and place.startswith("L.")):
            continue
        seen.add(target)

        def implementation(*args: Any) -> Any:
            return "ours"

        implementation.__name__ = target.replace(":", "_").replace(".", "_")
        retired = {} if action == "add" else {"retired_by": Never("a test")}
        getattr(feature, action)(target, **retired, **WHY)(implementation)


def snapshot() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def visit(name: str, owner: Any) -> None:
        found[name] = dict(vars(owner))
        for key, value in vars(owner).items():
            if isinstance(value, type) and value.__module__ == name.partition(":")[0]:
                visit(f"{name}:{key}", value)

    for name in ("up.m0", "up.m1", "up.m2"):
        if isinstance(sys.modules.get(name), types.ModuleType):
            visit(name, sys.modules[name])
    return found


def same(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> bool:
    return a.keys() == b.keys() and all(list(a[k]) == list(b[k]) and all(a[k][x] is b[k][x] for x in a[k]) for k in a)


quick = settings(max_examples=25)


@quick
@given(declared)
def test_a_rollback_leaves_every_namespace_as_it_was(patches) -> None:
    with world() as (package, plugin):
        for module in range(3):
            package.load(f"up.m{module}")
        before = snapshot()
        declare(plugin, patches)
        registry = plugin.start()
        assert set(registry.states().values()) <= {State.APPLIED, State.ABSENT}
        registry.deactivate()
        assert same(before, snapshot())


@quick
@given(declared, st.permutations(["up.m0", "up.m1", "up.m2"]))
def test_applied_is_said_of_what_is_ours_and_of_nothing_else(patches, order: list[str]) -> None:
    with world() as (package, plugin):
        declare(plugin, patches)
        registry = plugin.start()
        for name in order:
            package.load(name)
        for patch_id, status in registry.status().items():
            patch = next(p for p in plugin.features[0] if p.id == patch_id)
            owner: Any = sys.modules[patch.target.module]
            for part in filter(None, patch.target.owner.split(".")):
                owner = vars(owner)[part]
            value = vars(owner).get(patch.target.name)
            ours = value is not None and (value() if patch.target.owner == "" else value(None)) == "ours"
            assert ours is (status.state is State.APPLIED)
