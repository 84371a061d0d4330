"""What we change upstream, one folder a feature.

`contributions` adds what other distributions bring.
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
"""Of the decorators that are on what is patched: verl's, torch's and Ray's."""


def load() -> Sequence[Feature]:
    """All features of verl-npu, with all of their patches. Imports none of the upstreams."""
    return _own(_always).features


def load_installed() -> Sequence[Feature]:
    """All features of verl-npu, without the patches of packages that are not installed here."""
    return _own(_is_installed).features


def bundles(*, installed: bool = False) -> Sequence[Bundle]:
    """The features of verl-npu and then those that other distributions bring, with all patches or those of packages
    that are `installed` here. Raises nothing for what is wrong with what others bring: it is in their bundles."""
    is_there = _is_installed if installed else _always
    own = _own(is_there)
    return [own, *contributions.brought(own, is_there)]


def _always(package: str) -> bool:
    return True


def _is_installed(package: str) -> bool:
    return installed_folder(package) is not None


def _own(is_there: Callable[[str], bool]) -> Bundle:
    features = [feature.with_parts(is_there) for feature in _features()]
    errors = [error for feature in features for error in contributions.strangers(feature, f"{_PACKAGE}.")]
    return Bundle(features, UPSTREAMS, locks_folder(), errors=errors)


def _features() -> Sequence[Feature]:
    """All features; of those with modules beside them for their patches, these are imported."""
    from .attention import attention, flash, padding  # noqa: F401
    from .device import device
    from .engine_sleep import engine_sleep
    from .fleet import fleet
    from .fused_kernels import fused_kernels
    from .fused_ops import experts, fsdp2, fused_ops, layers  # noqa: F401
    from .host_copies import host_copies
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
        micro_batches,
        rollout,
        engine_sleep,
        weight_sync,
        megatron,
        fleet,
    )


def policy(environ: Mapping[str, str] | None = None, *, strict: bool = False) -> Policy:
    """The switches of an environment, which is this process's by default."""
    return Policy(
        prefix="VERL_NPU",
        command="verl-npu",
        strict=strict,
        force=environment.FORCE.read(environ),
        disable=environment.DISABLE.read(environ),
    )


def wrong_settings(environ: Mapping[str, str] | None = None) -> Iterator[tuple[Variable, SettingError]]:
    """Yield each variable of verl-npu that an environment sets wrongly, with the error that a job says of it."""
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


def _of_this_process() -> Sequence[Bundle]:
    found = bundles(installed=True)
    contributions.end()
    return found


def make_registry(mutex: Mutex, warn: Callable[[str], None], changed: Callable[[], None]) -> Registry:
    """The registry of verl-npu in this process, not begun yet. Raises SettingError for a switch that is wrong."""
    try:
        strict = environment.STRICT.read()
    except SettingError:
        # Nobody is to mend one variable, start the job again, and meet the next.
        for wrong in policy().wrong(_names()):
            warn(str(wrong))
        raise
    return Registry(
        mutex=mutex,
        bundles=_of_this_process,
        policy=policy(strict=strict),
        warn=warn,
        changed=changed,
        conventions=CONVENTIONS,
        patch_modules=PATCH_MODULES,
    )
