"""Patches and features, as their authors declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConflictError, DeclarationError, RegistryError
from .source.named import Collaborator
from .source.probe import Atom, Defines, Probe
from .source.tree import Target
from .state import Word

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class Action(Word):
    """What a patch does to its target."""

    REPLACE = "replace"
    """Upstream's code is not run any more: relies on the source, so the fingerprint is checked."""
    WRAP = "wrap"
    """Called as `implementation(original, *args, **kwargs)`: relies on the signature and on its own `requires`."""
    ADD = "add"
    """The target does not exist upstream; it does afterwards."""
    SET = "set"
    """A value that upstream computes on import becomes `implementation(value)`: the fingerprint is checked."""
    GUARD = "guard"
    """Called as `implementation()` before the target's module is executed; what it raises, the import raises."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the fingerprint decides; else it is the signature, or that there is nothing."""
        return self in (Action.REPLACE, Action.SET)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A distribution that is patched, and the top-level packages that it brings."""

    name: str
    packages: tuple[str, ...]


def owners(upstreams: Sequence[Upstream]) -> dict[str, str]:
    """The name of the upstream that brings each top-level package."""
    return {package: upstream.name for upstream in upstreams for package in upstream.packages}


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """One change of one target."""

    id: str
    target: Target
    action: Action
    implementation: Any
    why: str
    how: str
    link: str
    """The upstream issue or pull request; or why there is none."""
    retired_by: Probe
    """When this holds of the upstream's source, upstream does it itself."""
    requires: Probe | None
    """When this does not hold of the source, there is nothing to patch: the patch is absent."""
    undoes: tuple[Target, ...] = ()
    """What upstream assigns by itself in another package and this patch may put back."""
    uses: tuple[Collaborator, ...] = ()
    """What else of upstream the implementation needs, or may use."""
    may_skip: bool = False
    """Whether a wrapper may return without a call of upstream's code: what upstream adds to that is skipped too."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the source of the target decides, and not its signature alone."""
        return self.may_skip or self.action.relies_on_source

    @property
    def feature(self) -> str:
        """The name of the feature that the patch belongs to."""
        return self.id.partition(".")[0]

    def atoms(self) -> Iterator[Atom]:
        """Return the questions whose answers decide whether the patch is needed."""
        yield from self.retired_by.atoms()
        if self.requires is not None:
            yield from self.requires.atoms()


class _Declare:
    """Declares the patches of one action in a feature: a decorator of what implements them."""

    __slots__ = ("_action", "_feature")

    def __init__(self, feature: Feature, action: Action) -> None:
        self._feature = feature
        self._action = action

    def __call__(
        self,
        target: str,
        *,
        why: str,
        how: str,
        link: str,
        retired_by: Probe,
        requires: Probe | None = None,
        undoes: Sequence[str] = (),
        uses: Sequence[str] = (),
        may_use: Sequence[str] = (),
        may_skip: bool = False,
        name: str = "",
    ) -> Callable[[Implementation], Implementation]:
        """Return the decorator; what implements several patches gives each a `name`, as its own one is taken.

        Of a wrapper that `may_skip` upstream's code it is said where that code is another one than at every pin.

        `uses` are the collaborators without which the implementation fails or does nothing, and `may_use` those whose
        absence it handles. Raises DeclarationError for a text that is empty, or a target or collaborator that is none.
        """
        for label, text in (("why", why), ("how", how), ("link", link)):
            if not text.strip():
                raise DeclarationError(
                    subject=f"patch of {target} in feature {self._feature.name}",
                    expected=f"a non-empty {label!r}",
                    found="an empty text",
                    fix=f"say {label}: it is what `explain` shows to the user",
                )

        def declare(implementation: Implementation) -> Implementation:
            self._feature.include(
                Patch(
                    id=f"{self._feature.name}.{name or implementation.__name__}",
                    target=Target.parse(target),
                    action=self._action,
                    implementation=implementation,
                    why=why,
                    how=how,
                    link=link,
                    retired_by=retired_by,
                    requires=requires,
                    undoes=tuple(map(Target.parse, undoes)),
                    may_skip=may_skip,
                    uses=(*map(Collaborator.parse, uses), *(Collaborator.parse(m, optional=True) for m in may_use)),
                )
            )
            return implementation

        return declare


@dataclass(frozen=True, slots=True)
class Part:
    """Patches of a feature that nothing reaches where none of some packages is installed: there they stay unloaded."""

    packages: tuple[str, ...]
    patches: frozenset[str]
    """Their ids: that these are in a lock and not declared is no damage then."""
    load: Callable[[], Feature]
    """Imports the modules that declare them, and returns what they were declared for."""


class Feature:
    """Patches that only make sense together: verified and applied all or nothing.

    Each action has a decorator that declares a patch:

        device = Feature("device", "The whole job knows that it runs on NPUs")

        @device.wrap("pkg.main:run", why="…", how="…", link="…", retired_by=Calls("pkg.main:run", "on_npu"))
        def resolve_device(original, config): ...
    """

    __slots__ = (
        "_late",
        "_made_of",
        "_parts",
        "_patches",
        "after",
        "guard",
        "left_out",
        "name",
        "owner",
        "replace",
        "set",
        "summary",
        "wrap",
    )

    def __init__(self, name: str, summary: str, *, after: str = "") -> None:
        """`after` is a module of upstream that overwrites the same targets: what it put there we overwrite in turn."""
        self.name = name
        self.summary = summary
        self.after = after
        self.replace = _Declare(self, Action.REPLACE)
        self.wrap = _Declare(self, Action.WRAP)
        self.set = _Declare(self, Action.SET)
        self.guard = _Declare(self, Action.GUARD)
        self.owner = ""
        """The distribution that brings it, where that is not the one of the registry."""
        self.left_out: frozenset[str] = frozenset()
        """The ids of the patches in parts that were not loaded."""
        self._patches: dict[str, Patch] = {}
        self._parts: list[Part] = []
        self._made_of: Sequence[Feature] = ()
        self._late: Callable[[Patch], None] | None = None

    def __iter__(self) -> Iterator[Patch]:
        return iter(self._patches.values())

    def __len__(self) -> int:
        return len(self._patches)

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}" if self.owner else self.name

    def add(
        self,
        target: str,
        *,
        why: str,
        how: str,
        link: str,
        retired_by: Probe | None = None,
        requires: Probe | None = None,
        uses: Sequence[str] = (),
        may_use: Sequence[str] = (),
        name: str = "",
    ) -> Callable[[Implementation], Implementation]:
        """Declare what is put where upstream has nothing; a target that exists there retires it."""
        retired = Defines(target) if retired_by is None else retired_by
        return _Declare(self, Action.ADD)(
            target,
            why=why,
            how=how,
            link=link,
            retired_by=retired,
            requires=requires,
            uses=uses,
            may_use=may_use,
            name=name,
        )

    def more(self) -> Feature:
        """Return what the patches of a part are declared for."""
        return Feature(self.name, self.summary, after=self.after)

    def part(self, *packages: str, patches: str) -> Callable[[Callable[[], Feature]], Callable[[], Feature]]:
        """Return the decorator of the function that loads a part, of which `patches` are the names; see `Part`."""

        def declare(load: Callable[[], Feature]) -> Callable[[], Feature]:
            ids = frozenset(f"{self.name}.{name}" for name in patches.split())
            self._parts.append(Part(packages, ids, load))
            return load

        return declare

    def with_parts(self, is_there: Callable[[str], bool] = lambda package: True) -> Feature:
        """Return the feature with all of its parts, or with those of which a package `is_there`."""
        made = self.more()
        parts = [part for part in self._parts if any(map(is_there, part.packages))]
        made.left_out = frozenset(id for part in self._parts if part not in parts for id in part.patches)
        made._made_of = (self, *(part.load() for part in parts))
        for patch in (patch for patches in made._made_of for patch in patches):
            made.include(patch)
        return made

    def close(self, late: Callable[[Patch], None]) -> None:
        """Take no more patches, in what the feature was made of either: give each one that comes to `late`."""
        for feature in (self, *self._made_of):
            feature._late = late

    def include(self, patch: Patch) -> None:
        """Take a patch into the feature. Raises ConflictError for a second one of the same id or target.

        A module that is executed again, as its import was interrupted, declares its patches again.
        """
        other = self._patches.get(patch.id) or next((p for p in self if p.target == patch.target), None)
        if other is not None and _declaration(other) != _declaration(patch):
            raise ConflictError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="one patch for each id and each target",
                found=f"{other.id} of {other.target}",
                fix="merge the two, or rename one",
            )
        if self._late is not None and other is None:
            self._late(patch)
            return
        self._patches[patch.id] = patch

    def exclude(self, patch: Patch) -> None:
        """Take a patch out of the feature."""
        del self._patches[patch.id]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The features of one owner: what is judged by the owner's own locks, and apart from what others bring."""

    features: Sequence[Feature]
    upstreams: Sequence[Upstream]
    """Those that the features patch or ask about."""
    locks: Path
    owner: str = ""
    """The distribution that brings them; empty for that of the registry."""
    errors: Sequence[RegistryError] = ()
    """Why other features of this owner are left out."""


def _declaration(patch: Patch) -> tuple[object, ...]:
    code = getattr(patch.implementation, "__code__", None)
    line = None if code is None else (code.co_filename, code.co_firstlineno)
    return patch.id, patch.target, patch.action, getattr(patch.implementation, "__module__", ""), line


def refuse_conflicts(features: list[Feature]) -> None:
    """Raise ConflictError where two features patch one target."""
    seen: dict[Target, Patch] = {}
    for patch in (patch for feature in features for patch in feature):
        other = seen.setdefault(patch.target, patch)
        if other is not patch:
            raise ConflictError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="one patch for each target",
                found=f"{other.id} of the same target",
                fix="merge the two into one feature",
            )
