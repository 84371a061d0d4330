"""The features of verl-npu, each in its own folder or module.

`contributions` adds the features of other distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import environment
from ..errors import SettingError
from ..registry.apply.engine import Registry
from ..registry.apply.lifecycle import Mutex
from ..registry.apply.replacement import Conventions
from ..registry.judge.policy import Policy
from ..registry.patch import Bundle, Feature
from ..registry.source.folder import installed_folder
from ..variable import Choice, Number, Variable
from . import contributions
from .contributions import Contribution
from .upstreams import PATCH_MODULES, UPSTREAMS, locks_folder

_PACKAGE = __name__.partition(".")[0]

__all__ = [
    "CONVENTIONS",
    "PATCH_MODULES",
    "UPSTREAMS",
    "Contribution",
    "bundles",
    "load",
    "load_installed",
    "locks_folder",
    "make_registry",
    "policy",
    "wrong_settings",
]

CONVENTIONS = Conventions(
    transparent=frozenset({"register", "annotate", "GPUMemoryLogger", "no_grad"}),
    registering="register",
    mark="attrs_3141562937",
    remote=frozenset({"remote"}),
)
"""Facts about the decorators of verl, torch, and Ray on patched functions and classes."""


def load() -> Sequence[Feature]:
    """Return all features of verl-npu with all of their patches, without importing any upstream."""
    return _own(_always).features


def load_installed() -> Sequence[Feature]:
    """Return all features of verl-npu, without patches for packages that are not installed in this environment."""
    return _own(_is_installed).features


def bundles(*, installed: bool = False) -> Sequence[Bundle]:
    """Return the features of verl-npu as a bundle, followed by a bundle for each other distribution.

    With `installed`, omit patches for packages that are not installed in this environment. An error in another
    distribution's features is recorded in that distribution's bundle instead of being raised.
    """
    is_there = _is_installed if installed else _always
    own = _own(is_there)
    return [own, *contributions.contributed(own, is_there)]


def _always(package: str) -> bool:
    return True


def _is_installed(package: str) -> bool:
    return installed_folder(package) is not None


def _own(is_there: Callable[[str], bool]) -> Bundle:
    features = [feature.with_parts(is_there) for feature in _features()]
    errors = [error for feature in features for error in contributions.remove_foreign_patches(feature, f"{_PACKAGE}.")]
    return Bundle(features, UPSTREAMS, locks_folder(), errors=errors)


def _features() -> Sequence[Feature]:
    """Import the modules that declare patches, and return all features."""
    from .attention import attention, flash, padding  # noqa: F401
    from .device import device
    from .engine_sleep import engine_sleep
    from .fleet import fleet
    from .fused_kernels import fused_kernels
    from .fused_ops import experts, fsdp2, fused_ops, layers  # noqa: F401
    from .host_copies import host_copies
    from .linear_attention import linear_attention
    from .megatron import megatron
    from .micro_batches import micro_batches
    from .rollout import rollout
    from .weight_sync import weight_sync
    from .weight_sync.patches import checkpoint_engine, vllm_model  # noqa: F401

    return (
        device,
        host_copies,
        attention,
        fused_ops,
        fused_kernels,
        linear_attention,
        micro_batches,
        rollout,
        engine_sleep,
        weight_sync,
        megatron,
        fleet,
    )


def policy(environ: Mapping[str, str] | None = None, *, strict: bool = False) -> Policy:
    """Return the registry's settings, which users choose with environment variables. `environ` defaults to the
    environment of this process."""
    return Policy(
        prefix="VERL_NPU",
        command="verl-npu",
        strict=strict,
        force=environment.FORCE.read(environ),
        disable=environment.DISABLE.read(environ),
    )


def wrong_settings(environ: Mapping[str, str] | None = None) -> Iterator[tuple[Variable, SettingError]]:
    """Yield each variable of verl-npu that has an invalid value in `environ`, together with the error that a job would
    raise for it."""
    for variable in environment.VARIABLES.values():
        if not isinstance(variable, Choice | Number) or not variable.is_set(environ):
            continue
        try:
            variable.read(environ)
        except SettingError as error:
            yield variable, error
    for unknown in policy(environ).wrong(_names()):
        yield environment.VARIABLES[unknown.subject.partition("=")[0]], unknown


def _names() -> list[str]:
    return [feature.name for bundle in bundles() for feature in bundle.features]


def _installed_bundles() -> Sequence[Bundle]:
    found = bundles(installed=True)
    contributions.end()
    return found


def make_registry(mutex: Mutex, warn: Callable[[str], None], changed: Callable[[], None]) -> Registry:
    """Create the registry of verl-npu for this process, without starting it. Raises SettingError if VERL_NPU_STRICT
    has an invalid value."""
    try:
        strict = environment.STRICT.read()
    except SettingError:
        # Report all invalid variables at once, so that nobody fixes one, starts the job again, and meets the next.
        for wrong in policy().wrong(_names()):
            warn(str(wrong))
        raise
    return Registry(
        mutex=mutex,
        bundles=_installed_bundles,
        policy=policy(strict=strict),
        warn=warn,
        changed=changed,
        conventions=CONVENTIONS,
        patch_modules=PATCH_MODULES,
    )
