"""A small upstream of our own on disk, and a registry that patches it."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from verl_npu.maintain.locks import record_lock, write_lock
from verl_npu.registry.apply.engine import Registry
from verl_npu.registry.apply.lifecycle import Lifecycle
from verl_npu.registry.apply.replacement import Conventions
from verl_npu.registry.judge.policy import Policy
from verl_npu.registry.patch import Bundle, Feature, Upstream
from verl_npu.registry.source.named import PatchModule
from verl_npu.registry.source.tree import SourceTree


@dataclass
class Package:
    """An importable package `up` whose modules a test writes."""

    root: Path

    def write(self, module: str, source: str) -> None:
        """Write `module` of the package, for example `up.ops`; `up` itself is its __init__."""
        parts = module.split(".")
        path = self.root.joinpath(*parts[:-1], f"{parts[-1]}.py") if parts[1:] else self.root / "up" / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def load(self, module: str) -> ModuleType:
        return importlib.import_module(module)

    def tree(self) -> SourceTree:
        return SourceTree.at(self.root, ("up",))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    # A .pyc of the same second and size would hide a rewritten source.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Package(tmp_path / "site")
    made.write("up", "")
    monkeypatch.syspath_prepend(str(made.root))
    yield made
    for name in [name for name in sys.modules if name == "up" or name.startswith(("up.", "user_"))]:
        del sys.modules[name]


class Started(Registry):
    """A registry, and the lifecycle that calls its `begin` and `end`."""

    def __init__(self, **parts: object) -> None:
        self.lifecycle = Lifecycle("up", lambda mutex: self)
        self.activate, self.deactivate = self.lifecycle.activate, self.lifecycle.deactivate
        super().__init__(mutex=self.lifecycle.mutex, **parts)  # type: ignore[arg-type]

    @property
    def active(self) -> bool:
        return self.lifecycle.active


@dataclass
class Plugin:
    """The parts of a registry; `start` writes the locks from the package as it is now, and activates."""

    package: Package
    locks: Path
    features: list[Feature] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    registries: list[Started] = field(default_factory=list)
    patch_modules: list[PatchModule] = field(default_factory=list)
    """The modules of the package that patch by themselves."""

    def feature(self, name: str, **options: str) -> Feature:
        made = Feature(name, f"the feature {name}", **options)
        self.features.append(made)
        return made

    def lock(self, pin: str = "v1") -> None:
        upstream = Upstream("up", ("up",))
        patches = [patch for feature in self.features for patch in feature]
        write_lock(record_lock(upstream, pin, pin, self.package.tree(), patches), self.locks)

    def bundles(self) -> list[Bundle]:
        return [Bundle(self.features, (Upstream("up", ("up",)),), self.locks)]

    def start(self, *, lock: bool = True, **policy: object) -> Started:
        if lock:
            self.lock()
        registry = Started(
            bundles=self.bundles,
            policy=Policy("PLUGIN", **policy),  # type: ignore[arg-type]
            warn=self.reported.append,
            changed=lambda: None,
            conventions=Conventions(frozenset({"register"}), "register", "registered_as", frozenset({"remote"})),
            patch_modules=self.patch_modules,
        )
        self.registries.append(registry)
        registry.activate()
        return registry

    def start_on(self, module: str, source: str, **policy: object) -> Started:
        """Lock the package as it is, then replace a module's source, start, and import `up`."""
        self.lock()
        self.package.write(module, source)
        registry = self.start(lock=False, **policy)
        self.package.load("up")
        return registry


@pytest.fixture
def plugin(package: Package, tmp_path: Path) -> Iterator[Plugin]:
    made = Plugin(package, tmp_path / "locks")
    yield made
    for registry in made.registries:
        registry.deactivate()


@pytest.fixture
def why() -> dict[str, str]:
    """Return the texts that every patch must have."""
    return {"why": "a reason", "how": "a way", "link": "none: a test"}
