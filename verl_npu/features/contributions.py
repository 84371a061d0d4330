"""Features of other distributions: loaded from entry points, and checked before they are judged.

    [project.entry-points."verl_npu.features"]
    anything = "their_package:contribution"

An error in one feature is recorded in the bundle of its distribution. All other features still work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .. import environment, reporting
from ..damage import is_temporary
from ..errors import DeclarationError, RegistryError
from ..registry.patch import Bundle, Feature, Patch, Upstream, owners
from ..registry.source.tree import package_of

GROUP = "verl_npu.features"
OURS = "verl-npu"
_PAGE = "see docs/writing-a-patch.md"

_ended = False


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a distribution: its features, the folder with its locks, and the upstreams that it adds to
    those of verl-npu."""

    features: tuple[Feature, ...]
    locks: Path
    upstreams: tuple[Upstream, ...] = ()

    def __post_init__(self) -> None:
        if _ended:
            _refuse_late(", ".join(map(str, self.features)))


def end() -> None:
    """Stop accepting new features in this process, because verl-npu is about to decide which patches to apply. A
    feature that is contributed later is not used."""
    global _ended
    _ended = True


def _refuse_late(names: str) -> None:
    error = DeclarationError(
        subject=f"the contributed features {names}",
        found="verl-npu ignores these features, because they were contributed after verl was imported",
        fix=f"contribute the features through an entry point in the group {GROUP}; {_PAGE}",
    )
    if environment.STRICT.read():
        raise error
    reporting.warn(str(error))


def contributed(own: Bundle, is_there: Callable[[str], bool]) -> list[Bundle]:
    """Return a bundle for each entry point through which another distribution adds features. The order is the same in
    every process.

    A feature that conflicts with an earlier feature, or with a feature in `own`, is omitted, and its bundle gets an
    error.
    """
    points = metadata.entry_points(group=GROUP)
    found = [own]
    for point in sorted(points, key=lambda point: (_owner(point), point.name)):
        found.append(_bundle(point, found, is_there))
    return found[1:]


def remove_foreign_patches(feature: Feature, package: str) -> Iterator[DeclarationError]:
    """Remove the patches whose code is not in `package`. Yield an error for each removed patch."""
    for patch in tuple(feature):
        module = getattr(patch.implementation, "__module__", package)
        if module.startswith(package):
            continue
        feature.exclude(patch)
        yield DeclarationError(
            subject=f"patch {patch.id}, declared in {module}",
            found=f"this patch was added to the feature {feature.name} of {OURS}, so verl-npu ignores it",
            fix=f"declare the patch in a feature of your own, and contribute this feature through an entry point in "
            f"the group {GROUP}; {_PAGE}",
        )


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _bundle(point: metadata.EntryPoint, earlier: Sequence[Bundle], is_there: Callable[[str], bool]) -> Bundle:
    owner = _owner(point)
    ours = earlier[0].upstreams
    features: list[Feature] = []
    errors: list[RegistryError] = []
    try:
        made = _loaded(point, owner, ours)
    except RegistryError as error:
        return Bundle((), ours, Path(), owner, (error,))
    bundle = Bundle(features, (*ours, *made.upstreams), made.locks, owner, errors)
    for feature in made.features:
        try:
            whole = feature.with_parts(is_there)
            whole.owner = owner
            _check(whole, bundle, [*earlier, bundle])
            features.append(whole)
        except Exception as error:
            if is_temporary(error):
                raise
            errors.append(_failed(owner, f"feature {feature.name}", error))
    return bundle


def _loaded(point: metadata.EntryPoint, owner: str, ours: Sequence[Upstream]) -> Contribution:
    try:
        made = point.load()
    except Exception as error:
        if is_temporary(error):
            raise
        raise _failed(owner, point.value, error) from error
    if not isinstance(made, Contribution) or not (
        isinstance(made.locks, Path)
        and all(isinstance(feature, Feature) for feature in made.features)
        and all(isinstance(upstream, Upstream) for upstream in made.upstreams)
    ):
        raise DeclarationError(
            subject=f"{point.value} of {owner}",
            expected="a Contribution with Features, the Path of their locks, and Upstreams",
            found=f"{made!r}"[:200],
            fix=f"point this entry point to a Contribution; until then, verl-npu ignores it; {_PAGE}",
        )
    known = owners(ours)
    twice = [package for upstream in made.upstreams for package in upstream.packages if package in known]
    if twice:
        raise DeclarationError(
            subject=f"upstream {', '.join(twice)} of {owner}",
            found=f"{OURS} already lists this upstream ({known[twice[0]]})",
            fix=f"remove the upstream from {point.value}; {owner} can patch it without listing it",
        )
    return made


def _failed(owner: str, what: str, error: Exception) -> RegistryError:
    if isinstance(error, RegistryError):
        return error
    return DeclarationError(
        subject=f"{what} of {owner}",
        found=f"verl-npu ignores this contribution, because it cannot be loaded: {type(error).__name__}: {error}",
        fix=f"report the error to the maintainers of {owner}, or uninstall {owner}",
    )


def _check(feature: Feature, bundle: Bundle, existing: Sequence[Bundle]) -> None:
    """Raise DeclarationError if a feature conflicts with one of the `existing` features, or cannot be judged."""
    packages = owners(bundle.upstreams)
    for patch in feature:
        strange = next((name for name in _packages(patch) if name not in packages), None)
        if strange is not None:
            raise DeclarationError(
                subject=f"patch {patch.id} of {bundle.owner}",
                expected=f"a patch whose target and probes concern only {', '.join(packages)}",
                found=strange,
                fix=f"add {strange} to the upstreams of the contribution; until then, verl-npu ignores the feature "
                f"of this patch",
            )
    targets = {patch.target: patch for patch in feature}
    for other, whose in ((other, each.owner or OURS) for each in existing for other in each.features):
        same = next((patch for patch in other if patch.target in targets), None)
        if same is not None:
            raise DeclarationError(
                subject=f"patch {targets[same.target].id} of {bundle.owner}",
                found=f"{same.id} of {whose} already patches {same.target}, so verl-npu ignores the feature "
                f"{feature.name} of {bundle.owner}",
                fix="remove one of these two patches",
            )
        if other.name == feature.name:
            raise DeclarationError(
                subject=f"feature {feature.name} of {bundle.owner}",
                found=f"{whose} already has a feature with this name, so verl-npu ignores the feature of "
                f"{bundle.owner}",
                fix="rename the feature",
            )


def _packages(patch: Patch) -> Iterator[str]:
    yield patch.target.package
    for atom in patch.atoms():
        yield package_of(atom.subject)
    for use in patch.uses:
        yield use.package
