"""Declarations of patches and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DeclarationError, RegistryError
from .source.named import Collaborator
from .source.probe import Atom, Defines, Probe
from .source.tree import Target
from .state import Word

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class Action(Word):
    """The action of a patch on its target."""

    REPLACE = "replace"
    """Upstream's code no longer runs. The patch relies on the source, so the fingerprint is checked."""
    WRAP = "wrap"
    """Called as `implementation(original, *args, **kwargs)`; relies on the signature and on its own `requires`."""
    ADD = "add"
    """The target does not exist upstream; the patch creates it."""
    SET = "set"
    """A value that upstream computes on import becomes `implementation(value)`; the fingerprint is checked."""
    GUARD = "guard"
    """Called as `implementation()` before the target's module is executed; its errors become errors of the import."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the fingerprint must match, not just the signature or the absence of the target."""
        return self in (Action.REPLACE, Action.SET)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A distribution that is patched, and its top-level packages."""

    name: str
    packages: tuple[str, ...]


def owners(upstreams: Sequence[Upstream]) -> dict[str, str]:
    """Return the name of the upstream that owns each top-level package."""
    return {package: upstream.name for upstream in upstreams for package in upstream.packages}


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """One change to one target."""

    id: str
    target: Target
    action: Action
    implementation: Any
    why: str
    how: str
    link: str
    """The upstream issue or pull request, or the reason why there is none."""
    retired_by: Probe
    """If this holds for the upstream's source, upstream has the fix itself."""
    requires: Probe | None
    """If this does not hold for the source, there is nothing to patch, and the patch is absent."""
    undoes: tuple[Target, ...] = ()
    """Targets that upstream assigns in another package, and that this patch may restore."""
    uses: tuple[Collaborator, ...] = ()
    """Other parts of upstream that the implementation needs or may use."""
    may_skip: bool = False
    """Whether a wrapper may return without calling upstream's code, and so skip anything that upstream adds to it."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the source of the target must match, not just its signature."""
        return self.may_skip or self.action.relies_on_source

    @property
    def feature(self) -> str:
        """The name of the feature that the patch belongs to."""
        return self.id.partition(".")[0]

    def atoms(self) -> Iterator[Atom]:
        """Yield the questions whose answers decide whether the patch is needed."""
        yield from self.retired_by.atoms()
        if self.requires is not None:
            yield from self.requires.atoms()


class _Declare:
    """A decorator that declares patches of one action in a feature."""

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
        """Return the decorator. An implementation of several patches gives each a `name`.

        `may_skip` is for a wrapper that may not call upstream's code: a changed source of the target is then reported.

        The implementation fails or does nothing without the collaborators in `uses`, and handles the absence of those
        in `may_use`. Raises DeclarationError for an empty text and for a malformed target or collaborator.
        """
        for label, text in (("why", why), ("how", how), ("link", link)):
            if not text.strip():
                raise DeclarationError(
                    subject=f"patch of {target} in feature {self._feature.name}",
                    expected=f"a non-empty {label!r}",
                    found="an empty text",
                    fix=f"write {label}, which `explain` shows to the user",
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
    """Patches of a feature that stay unloaded where none of some packages is installed, because nothing reaches
    them."""

    packages: tuple[str, ...]
    patches: frozenset[str]
    """Their ids. A part that is not loaded leaves them undeclared, which is no damage although a lock lists them."""
    load: Callable[[], Feature]
    """Imports the modules that declare the patches, and returns the feature that holds them."""


class Feature:
    """Patches that only make sense together; either all are applied or none.

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
        """Make an empty feature. `after` is a module of upstream that overwrites the same targets; we overwrite them
        again."""
        self.name = name
        self.summary = summary
        self.after = after
        self.replace = _Declare(self, Action.REPLACE)
        self.wrap = _Declare(self, Action.WRAP)
        self.set = _Declare(self, Action.SET)
        self.guard = _Declare(self, Action.GUARD)
        self.owner = ""
        """The distribution of the feature, unless it is the registry's own."""
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
        """Declare an addition to upstream. It is retired as soon as its target exists there."""
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
        """Return an empty feature for the patches of a part."""
        return Feature(self.name, self.summary, after=self.after)

    def part(self, *packages: str, patches: str) -> Callable[[Callable[[], Feature]], Callable[[], Feature]]:
        """Return the decorator of a function that loads a part; `patches` names its patches, separated by blanks."""

        def declare(load: Callable[[], Feature]) -> Callable[[], Feature]:
            ids = frozenset(f"{self.name}.{name}" for name in patches.split())
            self._parts.append(Part(packages, ids, load))
            return load

        return declare

    def with_parts(self, is_there: Callable[[str], bool] = lambda package: True) -> Feature:
        """Return the feature with all of its parts, or with those that have a package for which `is_there` is true."""
        made = self.more()
        parts = [part for part in self._parts if any(map(is_there, part.packages))]
        made.left_out = frozenset(id for part in self._parts if part not in parts for id in part.patches)
        made._made_of = (self, *(part.load() for part in parts))
        for patch in (patch for patches in made._made_of for patch in patches):
            made.include(patch)
        return made

    def close(self, late: Callable[[Patch], None]) -> None:
        """Take no more patches, here or in the features that this one was made of; pass each new patch to `late`."""
        for feature in (self, *self._made_of):
            feature._late = late

    def include(self, patch: Patch) -> None:
        """Add a patch to the feature. Raises DeclarationError for another patch with the same id or target.

        A module whose import was interrupted is executed again, and declares its patches again.
        """
        other = self._patches.get(patch.id) or next((p for p in self if p.target == patch.target), None)
        if other is not None and _declaration(other) != _declaration(patch):
            raise DeclarationError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="one patch for each id and each target",
                found=f"{other.id} of {other.target}",
                fix="merge the two patches, or rename one of them",
            )
        if self._late is not None and other is None:
            self._late(patch)
            return
        self._patches[patch.id] = patch

    def exclude(self, patch: Patch) -> None:
        """Remove a patch from the feature."""
        del self._patches[patch.id]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The features of one owner, which are judged by the owner's own locks, apart from those of others."""

    features: Sequence[Feature]
    upstreams: Sequence[Upstream]
    """The upstreams that the features patch or ask about."""
    locks: Path
    owner: str = ""
    """The distribution of the features; empty for the registry's own."""
    errors: Sequence[RegistryError] = ()
    """Why other features of this owner are left out."""


def _declaration(patch: Patch) -> tuple[object, ...]:
    code = getattr(patch.implementation, "__code__", None)
    line = None if code is None else (code.co_filename, code.co_firstlineno)
    return patch.id, patch.target, patch.action, getattr(patch.implementation, "__module__", ""), line


def refuse_conflicts(features: list[Feature]) -> None:
    """Raise DeclarationError if two features patch one target."""
    seen: dict[Target, Patch] = {}
    for patch in (patch for feature in features for patch in feature):
        other = seen.setdefault(patch.target, patch)
        if other is not patch:
            raise DeclarationError(
                subject=f"patch {patch.id} of {patch.target}",
                found=f"{other.id} patches the same target",
                fix="merge the two patches into one feature",
            )
