"""Features that other distributions bring: what their entry points name, looked at before it is judged.

    [project.entry-points."verl_npu.features"]
    anything = "their_package:contribution"

Whatever is wrong with one is an error in its bundle, and costs nothing but what is wrong.
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
_PAGE = "docs/writing-a-patch.md says how"

_ended = False


@dataclass(frozen=True, slots=True)
class Contribution:
    """The features that a distribution brings, the folder of its locks, and the upstreams that it adds to ours."""

    features: tuple[Feature, ...]
    locks: Path
    upstreams: tuple[Upstream, ...] = ()

    def __post_init__(self) -> None:
        if _ended:
            _refuse_late(", ".join(map(str, self.features)))


def end() -> None:
    """Note that the features of this process are being judged: what comes from now on comes too late."""
    global _ended
    _ended = True


def _refuse_late(names: str) -> None:
    error = DeclarationError(
        subject=f"the contribution of {names}",
        expected=f"one that an entry point of the group {GROUP} names, or one made before verl is imported",
        found="one that came later",
        fix=f"it is left out; {_PAGE}",
    )
    if environment.STRICT.read():
        raise error
    reporting.warn(str(error))


def brought(own: Bundle, is_there: Callable[[str], bool]) -> list[Bundle]:
    """Return what others bring, in one order everywhere; `own` are the features that it must not get in the way of."""
    points = metadata.entry_points(group=GROUP)
    found = [own]
    for point in sorted(points, key=lambda point: (_owner(point), point.name)):
        found.append(_bundle(point, found, is_there))
    return found[1:]


def strangers(feature: Feature, package: str) -> Iterator[DeclarationError]:
    """Take the patches out of a feature whose code is not in the package that declares it: an error for each."""
    for patch in tuple(feature):
        module = getattr(patch.implementation, "__module__", package)
        if module.startswith(package):
            continue
        feature.exclude(patch)
        yield DeclarationError(
            subject=f"patch {patch.id}, declared in {module}",
            expected=f"a feature of its own, in an entry point of the group {GROUP}",
            found=f"one in the feature {feature.name} of {OURS}",
            fix=f"it is left out; {_PAGE}",
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
            _refuse(whole, bundle, [*earlier, bundle])
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
            expected="a Contribution of Features, the Path of their locks, and Upstreams",
            found=f"{made!r}"[:200],
            fix=f"it is left out; {_PAGE}",
        )
    known = owners(ours)
    twice = [package for upstream in made.upstreams for package in upstream.packages if package in known]
    if twice:
        raise DeclarationError(
            subject=f"upstream {', '.join(twice)} of {owner}",
            expected=f"upstreams that {OURS} does not have",
            found=f"{known[twice[0]]}, which it has",
            fix=f"leave it out in {point.value}: features of {owner} may patch it as it is",
        )
    return made


def _failed(owner: str, what: str, error: Exception) -> RegistryError:
    if isinstance(error, RegistryError):
        return error
    return DeclarationError(
        subject=f"{what} of {owner}",
        expected="features that can be loaded",
        found=f"{type(error).__name__}: {error}",
        fix=f"they are left out; ask those who maintain {owner}, or uninstall it",
    )


def _refuse(feature: Feature, bundle: Bundle, all_of_them: Sequence[Bundle]) -> None:
    """Raise DeclarationError for a feature that cannot be beside the others, or cannot be judged."""
    packages = owners(bundle.upstreams)
    for patch in feature:
        strange = next((name for name in _packages(patch) if name not in packages), None)
        if strange is not None:
            raise DeclarationError(
                subject=f"patch {patch.id} of {bundle.owner}",
                expected=f"something in {', '.join(packages)}",
                found=strange,
                fix=f"the feature is left out; name {strange} among the contribution's upstreams",
            )
    targets = {patch.target: patch for patch in feature}
    for other, whose in ((other, each.owner or OURS) for each in all_of_them for other in each.features):
        same = next((patch for patch in other if patch.target in targets), None)
        if same is not None:
            raise DeclarationError(
                subject=f"patch {targets[same.target].id} of {bundle.owner}",
                expected="one patch for each target",
                found=f"{same.id} of {whose}, which patches {same.target} too",
                fix=f"the feature {feature.name} of {bundle.owner} is left out; use only one of the two",
            )
        if other.name == feature.name:
            raise DeclarationError(
                subject=f"feature {feature.name} of {bundle.owner}",
                expected="one feature of each name",
                found=f"a feature {other.name} of {whose}",
                fix=f"the one of {bundle.owner} is left out; give it another name",
            )


def _packages(patch: Patch) -> Iterator[str]:
    yield patch.target.package
    for atom in patch.atoms():
        yield package_of(atom.subject)
    for use in patch.uses:
        yield use.package
