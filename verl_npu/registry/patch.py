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
    """The change that a patch makes to its target, such as replacing or wrapping it."""

    REPLACE = "replace"
    """The implementation replaces upstream's code, which no longer runs. The patch relies on the source, so the
    fingerprint is checked."""
    WRAP = "wrap"
    """The implementation is called as `implementation(original, *args, **kwargs)`. The patch relies on the target's
    signature, and on its own `requires`."""
    ADD = "add"
    """The target does not exist upstream. The patch creates it."""
    SET = "set"
    """A value that upstream computes on import becomes `implementation(value)`. The fingerprint is checked."""
    GUARD = "guard"
    """`implementation()` is called before the target's module is executed. Its errors end the import."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the action requires that the target's source is the same as at a pin. The other actions require only
        that the target's signature is the same, or that the target is absent."""
        return self in (Action.REPLACE, Action.SET)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A distribution that can be patched, and its top-level packages."""

    name: str
    packages: tuple[str, ...]


def owners(upstreams: Sequence[Upstream]) -> dict[str, str]:
    """Return the name of the upstream that owns each top-level package."""
    return {package: upstream.name for upstream in upstreams for package in upstream.packages}


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """A change to one target."""

    id: str
    target: Target
    action: Action
    implementation: Any
    why: str
    how: str
    link: str
    """The upstream issue or pull request. If there is none, the reason."""
    retired_by: Probe
    """A probe of upstream's source. If the answer is yes, upstream already contains the fix."""
    requires: Probe | None
    """A probe of upstream's source. If the answer is no, there is nothing to patch, and the patch is absent."""
    undoes: tuple[Target, ...] = ()
    """Targets in other packages that upstream assigns. This patch may restore them."""
    uses: tuple[Collaborator, ...] = ()
    """Other parts of upstream that the implementation needs or may use."""
    may_skip: bool = False
    """Whether a wrapper may return without calling upstream's code. It would then also skip anything that upstream
    adds there."""

    @property
    def relies_on_source(self) -> bool:
        """Whether the source of the target must be the same as at a pin, and not only its signature."""
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
    """A decorator that declares a feature's patches of one action."""

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
        """Return the decorator. If one implementation serves several patches, each of them needs a `name`.

        Set `may_skip` for a wrapper that may return without calling upstream's code. Then a change in the target's
        source is reported.

        Without the collaborators in `uses`, the implementation fails or has no effect. It can handle the absence of
        those in `may_use`. Raises DeclarationError for an empty string, or for a malformed target or collaborator.
        """
        for label, text in (("why", why), ("how", how), ("link", link)):
            if not text.strip():
                raise DeclarationError(
                    subject=f"patch of {target} in feature {self._feature.name}",
                    expected=f"a non-empty string for {label!r}",
                    found="an empty string",
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
    """A part of a feature: patches that matter only to some packages. They are loaded only if one of these packages is
    installed."""

    packages: tuple[str, ...]
    patches: frozenset[str]
    """The ids of the patches. If the part is not loaded, these patches are not declared, although a lock lists them.
    This is not treated as damage."""
    load: Callable[[], Feature]
    """A function that imports the modules which declare the patches. It returns a feature with the patches."""


class Feature:
    """A set of patches that only make sense together. Either all of the patches are applied or none.

    Each action (replace, wrap, add, set, or guard) has a decorator that declares a patch:

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
        """Create a feature without patches.

        `after` is an upstream module that overwrites the same targets as this feature. After it has overwritten them,
        this feature's patches are applied again.
        """
        self.name = name
        self.summary = summary
        self.after = after
        self.replace = _Declare(self, Action.REPLACE)
        self.wrap = _Declare(self, Action.WRAP)
        self.set = _Declare(self, Action.SET)
        self.guard = _Declare(self, Action.GUARD)
        self.owner = ""
        """The distribution that the feature comes from. Empty if it is the registry's own."""
        self.left_out: frozenset[str] = frozenset()
        """The ids of patches in parts that are not loaded."""
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
        """Declare a patch that adds a name to upstream. By default, the patch is retired if upstream has the name."""
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
        """Return an empty feature with the same name, which can hold the patches of one part of this feature (see
        `part`)."""
        return Feature(self.name, self.summary, after=self.after)

    def part(self, *packages: str, patches: str) -> Callable[[Callable[[], Feature]], Callable[[], Feature]]:
        """Return a decorator for a function that loads a part of this feature: patches that matter only if one of
        `packages` is present. `patches` contains the names of the part's patches, separated by spaces."""

        def declare(load: Callable[[], Feature]) -> Callable[[], Feature]:
            ids = frozenset(f"{self.name}.{name}" for name in patches.split())
            self._parts.append(Part(packages, ids, load))
            return load

        return declare

    def with_parts(self, is_there: Callable[[str], bool] = lambda package: True) -> Feature:
        """Return the feature together with its parts. A part is omitted if `is_there` returns False for all of the
        part's packages."""
        made = self.more()
        parts = [part for part in self._parts if any(map(is_there, part.packages))]
        made.left_out = frozenset(id for part in self._parts if part not in parts for id in part.patches)
        made._made_of = (self, *(part.load() for part in parts))
        for patch in (patch for patches in made._made_of for patch in patches):
            made.include(patch)
        return made

    def close(self, late: Callable[[Patch], None]) -> None:
        """Stop accepting patches for this feature, and for the features that it is composed of. From now on, pass each
        new patch to `late` instead."""
        for feature in (self, *self._made_of):
            feature._late = late

    def include(self, patch: Patch) -> None:
        """Add a patch to the feature. Raises DeclarationError if the feature already has a different patch with the
        same id or target.

        The same patch may be added twice: if the import of a module is interrupted and repeated, the module declares
        its patches again.
        """
        other = self._patches.get(patch.id) or next((p for p in self if p.target == patch.target), None)
        if other is not None and _declaration(other) != _declaration(patch):
            raise DeclarationError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="an id that no other patch has, and a target that no other patch has",
                found=f"{other.id} of {other.target}",
                fix="merge the two patches if they have the same target; rename one if they have the same id",
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
    """The features of one owner (the distribution that contributes them). The features are judged only by the owner's
    own locks."""

    features: Sequence[Feature]
    upstreams: Sequence[Upstream]
    """The upstreams that the features patch or ask questions about."""
    locks: Path
    owner: str = ""
    """The distribution that the features come from. Empty if they are the registry's own."""
    errors: Sequence[RegistryError] = ()
    """The errors that exclude other features of this owner."""


def _declaration(patch: Patch) -> tuple[object, ...]:
    code = getattr(patch.implementation, "__code__", None)
    line = None if code is None else (code.co_filename, code.co_firstlineno)
    return patch.id, patch.target, patch.action, getattr(patch.implementation, "__module__", ""), line


def refuse_conflicts(features: list[Feature]) -> None:
    """Raise DeclarationError if two features patch the same target."""
    seen: dict[Target, Patch] = {}
    for patch in (patch for feature in features for patch in feature):
        other = seen.setdefault(patch.target, patch)
        if other is not patch:
            raise DeclarationError(
                subject=f"patch {patch.id} of {patch.target}",
                found=f"{other.id} patches the same target",
                fix="combine the two patches into one patch",
            )
