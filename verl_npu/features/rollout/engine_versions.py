"""Rules that find releases of vLLM and vllm-ascend that cannot start a rollout. The rules run before the job
starts."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from ...ascend.variables import virtual_npus
from ...findings import Finding
from ...manifest import manifest
from ...pins import Pin, pins
from ...registry.source.tree import SourceTree, Target
from ..configuration import Section
from .findings import refusal, remark
from .unmet import UnmetImport, unmet_imports

if TYPE_CHECKING:
    from packaging.version import Version

_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_SERVER = f"{_ROLLOUT}.vllm_async_server"
_SYNC = Target(f"{_ROLLOUT}.vllm_rollout_spmd", "vLLMRollout")
_PLATFORM = "vllm_ascend.platform"
_PATCHES = ("vllm_ascend.patch.platform", "vllm_ascend.patch.worker")
_WORKER = re.compile(r"(vllm_ascend\.worker\.\w+)\.NPUWorker")
_VERSION_CHECK = "vllm_version_is"
_VERSION_VARIABLE = "VLLM_VERSION"
_VLLM, _VLLM_ASCEND = "vllm", "vllm-ascend"
_TORCH_PACKAGES = ("torch", "torch_npu")


def unfit_releases(config: Section) -> Iterator[Finding]:
    """Yield an error if the installed versions of verl, vLLM, and vllm-ascend cannot be imported together.

    This function imports none of these packages. It searches their source for imports that cannot succeed. If neither
    verl's documentation nor vllm-ascend's own requirements mention an installed release, the finding is only a
    warning. If vLLM is not installed, there are no findings, because the job may run on other hosts.
    """
    engine = config.actor_rollout_ref.rollout
    if engine.get("name") != "vllm":
        return
    tree = SourceTree.installed(("verl", "vllm", "vllm_ascend"))
    if "vllm" not in tree:
        return
    pin = _pin()
    yield from _unfit_for_verl(engine, tree, pin)
    if "vllm_ascend" in tree:
        yield from _unfit_pair(tree, pin)
    # With virtual NPUs, torch_npu is not the real one, and vLLM is built for CPUs.
    if not virtual_npus():
        yield from _unnamed(pin)


def _unfit_for_verl(engine: Section, tree: SourceTree, pin: Pin | None) -> Iterator[Finding]:
    at_once = mode == "async" if (mode := engine.get("mode")) else not tree.nodes(_SYNC)
    own_server = ((engine.get("agent") or {}).get("custom_async_server") or {}).get("path")
    starts = (_ROLLOUT, _SERVER) if at_once and not own_server else (_ROLLOUT,)
    unmet = next(unmet_imports(starts, "verl", "vllm", tree), None)
    if unmet is None:
        return
    sync = starts[1:] and tree.nodes(_SYNC) and next(unmet_imports(starts[:1], "verl", "vllm", tree), None) is None
    yield _unmet(
        f"vllm {_version_text(_VLLM)}",
        "a vLLM with every name that the installed verl's rollout imports",
        unmet,
        f"install another vLLM{_named(pin)}"
        + (", or set actor_rollout_ref.rollout.mode=sync, which this vLLM supports" if sync else ""),
    )


def _unfit_pair(tree: SourceTree, pin: Pin | None) -> Iterator[Finding]:
    engine, plugin = _version(_VLLM), _version(_VLLM_ASCEND)
    if engine is not None and plugin is not None and engine.release == plugin.release:
        return
    assumed = os.environ.get(_VERSION_VARIABLE) or _version_text(_VLLM)

    def decide(test: ast.expr) -> bool | None:
        return _evaluated(test, assumed)

    # vllm-ascend names a worker for each of vLLM's two engines, and one working worker is enough.
    ways: list[tuple[str, ...]] = [(_PLATFORM, *_PATCHES, worker) for worker in _workers(tree)]
    found = [
        next(unmet_imports(way, "vllm_ascend", "vllm", tree, decide), None) for way in ways or [(_PLATFORM, *_PATCHES)]
    ]
    lacking = [unmet for unmet in found if unmet is not None]
    if len(lacking) == len(found):
        yield _unmet(
            f"vllm {_version_text(_VLLM)} with vllm-ascend {_version_text(_VLLM_ASCEND)}",
            "a vLLM with every name that the installed vllm-ascend imports when an engine starts",
            lacking[0],
            f"install vllm and vllm-ascend in the same version{_named(pin)}",
        )


def _unmet(subject: str, expected: str, unmet: UnmetImport, fix: str) -> Finding:
    return refusal(
        "rollout.engine_versions",
        subject=subject,
        expected=expected,
        found=f"no {unmet.missing}, although line {unmet.line} of {unmet.module} imports {unmet.name}",
        fix=fix,
    )


def _workers(tree: SourceTree) -> Sequence[str]:
    """Return the worker modules that vllm-ascend's platform names."""
    named = (_WORKER.fullmatch(text) for text in sorted(tree.used_names(_PLATFORM)))
    return list(dict.fromkeys(match[1] for match in named if match is not None))


def _evaluated(test: ast.expr, vllm: str) -> bool | None:
    """Evaluate a condition that vllm-ascend uses to choose its imports, such as `vllm_version_is("0.11.0")`."""
    from packaging.version import InvalidVersion, Version

    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _evaluated(test.operand, vllm)
        return None if inner is None else not inner
    asked = test.args[0] if isinstance(test, ast.Call) and len(test.args) == 1 else None
    if not isinstance(asked, ast.Constant) or ast.unparse(test).partition("(")[0] != _VERSION_CHECK:
        return None
    try:
        return Version(vllm) == Version(str(asked.value))
    except InvalidVersion:
        return None


def _unnamed(pin: Pin | None) -> Iterator[Finding]:
    """Warn about installed releases that are mentioned neither in verl's documentation nor in vllm-ascend's
    requirements."""
    engine = _unnamed_releases(pin) if pin is not None else []
    if engine and pin is not None:
        yield remark(
            "rollout.engine_versions",
            f"verl's documentation for NPUs names {_named_engines(pin)} for {pin.name}, but {' and '.join(engine)} "
            f"{'is' if len(engine) == 1 else 'are'} installed here; verl-npu found no import that fails; "
            "if the rollout fails, run `verl-npu doctor`, which reports what to install",
        )
    for package, asked in _unmet_requirements():
        yield remark(
            "rollout.engine_versions",
            f"vllm-ascend {_version_text(_VLLM_ASCEND)} requires {package}{asked}, but "
            f"{package} {_version_text(package)} is installed here; if the engine ends with "
            f"`undefined symbol` or lacks vllm-ascend's operators, run pip install '{package}{asked}'",
        )


def _unnamed_releases(pin: Pin) -> list[str]:
    installed = {package: _version(package) for package in pin.engines}
    return [
        f"{package} {version}"
        for package, version in installed.items()
        if version is not None and not _is_named(pin.engines[package], version)
    ]


def _is_named(named: str, version: Version) -> bool:
    """Return whether `version` is the named version. If a release candidate is named, its final release counts,
    too."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    release = Version(named.removesuffix(".*")).release
    return SpecifierSet(f"=={named}").contains(version, prereleases=True) or version.release == release


def _unmet_requirements() -> Iterator[tuple[str, str]]:
    """Yield the requirements of vllm-ascend that the installed torch and torch_npu do not meet.

    Post-releases are ignored, because verl's documentation names some that vllm-ascend's metadata excludes, and verl
    trains with them.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    try:
        texts = metadata.requires(_VLLM_ASCEND) or ()
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, texts):
        for package in _TORCH_PACKAGES:
            version = _version(package)
            if version is None or canonicalize_name(package) != canonicalize_name(requirement.name):
                continue
            asked = [each.version for each in requirement.specifier if each.operator == "=="]
            near = any(Version(each.removesuffix(".*")).release == version.release for each in asked)
            if not near and not requirement.specifier.contains(version.base_version, prereleases=True):
                yield package, str(requirement.specifier)


def _pin() -> Pin | None:
    """Return the pin that equals the installed verl version or is nearest to it, or None if this process has not
    judged verl."""
    try:
        revision = manifest()["upstreams"].get("verl")
    except LookupError:
        return None
    return pins().get(revision["nearest_pin"]) if revision is not None else None


def _named(pin: Pin | None) -> str:
    return f"; verl's documentation for NPUs names {_named_engines(pin)} for {pin.name}" if pin is not None else ""


def _named_engines(pin: Pin) -> str:
    return " and ".join(f"{package} {named}" for package, named in pin.engines.items())


def _version_text(package: str) -> str:
    version = _version(package)
    return "of an unknown version" if version is None else str(version)


def _version(package: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(metadata.version(package))
    except (metadata.PackageNotFoundError, InvalidVersion):
        return None
