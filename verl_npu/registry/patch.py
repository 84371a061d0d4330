"""Patches and features, as their authors declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ..errors import ConflictError, DeclarationError
from .source.probe import Atom, Defines, Probe
from .source.target import Target

__all__ = ["Action", "Feature", "Patch", "Upstream", "conflicts", "owners"]

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class Action(str, Enum):
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

    def __str__(self) -> str:
        return self.value


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

    @property
    def feature(self) -> str:
        """The name of the feature that the patch belongs to."""
        return self.id.partition(".")[0]

    def atoms(self) -> Iterator[Atom]:
        """Return the questions whose answers decide whether the patch is needed."""
        yield from self.retired_by.atoms()
        if self.requires is not None:
            yield from self.requires.atoms()


class Feature:
    """Patches that only make sense together: verified and applied all or nothing.

    Its methods `replace`, `wrap`, `add`, `set` and `guard` are decorators that declare a patch:

        device = Feature("device", "The whole job knows that it runs on NPUs")

        @device.wrap("pkg.main:run", why="…", how="…", link="…", retired_by=Mentions("pkg.main:run", "npu"))
        def resolve_device(original, config): ...
    """

    __slots__ = ("_patches", "after", "name", "summary")

    def __init__(self, name: str, summary: str, *, after: str = "") -> None:
        """`after` is a module of upstream that overwrites the same targets: what it put there we overwrite in turn."""
        self.name = name
        self.summary = summary
        self.after = after
        self._patches: dict[str, Patch] = {}

    def __iter__(self) -> Iterator[Patch]:
        return iter(self._patches.values())

    def __len__(self) -> int:
        return len(self._patches)

    def replace(
        self, target: str, *, why: str, how: str, link: str, retired_by: Probe, requires: Probe | None = None
    ) -> Callable[[Implementation], Implementation]:
        """Declare that the decorated function or class takes the place of `target`."""
        return self._declare(Action.REPLACE, target, why, how, link, retired_by, requires)

    def wrap(
        self,
        target: str,
        *,
        why: str,
        how: str,
        link: str,
        retired_by: Probe,
        requires: Probe | None = None,
        undoes: Sequence[str] = (),
    ) -> Callable[[Implementation], Implementation]:
        """Declare that calls of `target` go to the decorated function, with the original as first argument.

        `undoes` is what upstream assigns by itself in another package and the decorated function may put back.
        """
        return self._declare(Action.WRAP, target, why, how, link, retired_by, requires, undoes)

    def add(
        self,
        target: str,
        *,
        why: str,
        how: str,
        link: str,
        retired_by: Probe | None = None,
        requires: Probe | None = None,
    ) -> Callable[[Implementation], Implementation]:
        """Declare that the decorated function is put where upstream has nothing; an existing target retires it."""
        retired = Defines(target) if retired_by is None else retired_by
        return self._declare(Action.ADD, target, why, how, link, retired, requires)

    def set(
        self, target: str, *, why: str, how: str, link: str, retired_by: Probe, requires: Probe | None = None
    ) -> Callable[[Implementation], Implementation]:
        """Declare that the value `target` becomes what the decorated function makes of it."""
        return self._declare(Action.SET, target, why, how, link, retired_by, requires)

    def guard(
        self, target: str, *, why: str, how: str, link: str, retired_by: Probe, requires: Probe | None = None
    ) -> Callable[[Implementation], Implementation]:
        """Declare that the decorated function is called before the module of `target` is executed, `target` being
        what that module does then."""
        return self._declare(Action.GUARD, target, why, how, link, retired_by, requires)

    def _declare(
        self,
        action: Action,
        target: str,
        why: str,
        how: str,
        link: str,
        retired_by: Probe,
        requires: Probe | None,
        undoes: Sequence[str] = (),
    ) -> Callable[[Implementation], Implementation]:
        for label, text in (("why", why), ("how", how), ("link", link)):
            if not text.strip():
                raise DeclarationError(
                    subject=f"patch of {target} in feature {self.name}",
                    expected=f"a non-empty {label!r}",
                    found="an empty text",
                    fix=f"say {label}: it is what `explain` shows to the user",
                )

        def declare(implementation: Implementation) -> Implementation:
            patch = Patch(
                id=f"{self.name}.{implementation.__name__}",
                target=Target.parse(target),
                action=action,
                implementation=implementation,
                why=why,
                how=how,
                link=link,
                retired_by=retired_by,
                requires=requires,
                undoes=tuple(map(Target.parse, undoes)),
            )
            other = self._patches.get(patch.id) or next((p for p in self if p.target == patch.target), None)
            if other is not None:
                raise ConflictError(
                    subject=f"patch {patch.id} of {patch.target}",
                    expected="one patch for each id and each target",
                    found=f"{other.id} of {other.target}",
                    fix="merge the two, or rename one",
                )
            self._patches[patch.id] = patch
            return implementation

        return declare


def conflicts(features: list[Feature]) -> None:
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
