"""What is in force in this process: one set of MindSpeed's patches, and the overrides of one worker at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...errors import RepatchError, SettledError
from .overrides.request import OVERRIDE, Request

# The patches import this module in every process, and most processes never call repatch: what judges and what undoes
# is imported when it is needed.
if TYPE_CHECKING:
    from argparse import Namespace

    from .interfaces import MindSpeedFeature, Repatch
    from .overrides.contract import Contract

__all__ = ["Settlement", "current", "plain", "put_in_force", "settle", "speaking_for"]

Patches = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is in force: the worker's request, the settings that MindSpeed got, and the patches that these make."""

    request: Request
    settings: Mapping[str, object]
    patches: Patches
    """The functions that MindSpeed puts on each target, by the target's dotted name."""
    defaults: Mapping[str, object]
    """MindSpeed's arguments before the first worker changed them."""


_in_force: Settlement | None = None
_speakers: list[Request] = []


def current() -> Settlement | None:
    """Return what is in force in this process."""
    return _in_force


@contextlib.contextmanager
def speaking_for(request: Request) -> Iterator[None]:
    """Within this context, each call of `repatch` counts as `request`, whatever the caller passes."""
    _speakers.append(request)
    try:
        yield
    finally:
        _speakers.remove(request)


def settle(request: Request) -> None:
    """Check `request` and put it in force through MindSpeed's own repatch. Does nothing if MindSpeed is not imported.

    Raises OverrideError, SettledError or RepatchError; the process is then as it was before.
    """
    adaptor = sys.modules.get("mindspeed.megatron_adaptor")
    if adaptor is not None:
        with speaking_for(request):
            adaptor.repatch(dict(request.overrides))


def put_in_force(original: Repatch, overrides: Mapping[str, object]) -> None:
    """Do what a call of `repatch` is meant to do. `original` is MindSpeed's function, `overrides` its argument.

    Raises OverrideError, SettledError or RepatchError; the process is then as it was before.
    """
    global _in_force
    from .overrides.installation import installation
    from .overrides.judgement import check

    request = _speakers[-1] if _speakers else Request("a caller of repatch", plain(overrides), {}, forward=False)
    contract = installation().contract
    settings = _with_megatrons_types(check(request, contract))
    if _in_force is not None and dict(_in_force.settings) == settings:
        return
    arguments = _arguments()
    defaults = _in_force.defaults if _in_force is not None else dict(vars(arguments))
    patches = _patches_for(request, settings, defaults, arguments)
    if _in_force is None:
        _apply(original, request, settings, arguments)
    else:
        _refuse_contradictions(_in_force, request, settings, patches, contract)
        # Nothing is patched again: the settings that differ are read when a model is built. Clearing the arguments
        # removes the other worker's keys.
        vars(arguments).clear()
        vars(arguments).update({**defaults, **settings})
    _in_force = Settlement(request, settings, patches, defaults)


def plain(mapping: object) -> dict[str, object]:
    """Return a configuration as a dict of plain values; None gives an empty one."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(mapping):
        container = omegaconf.OmegaConf.to_container(mapping, resolve=True)
        return {str(key): value for key, value in container.items()}
    return dict(cast("Mapping[str, object]", mapping or {}).items())


def _with_megatrons_types(settings: dict[str, object]) -> dict[str, object]:
    """Return `settings` with Megatron's enum member in place of its name, which is all that a YAML file can hold."""
    backend = settings.get("attention_backend")
    if not isinstance(backend, str):
        return settings
    from megatron.core.transformer.enums import AttnBackend

    return {**settings, "attention_backend": AttnBackend[backend]}


def _arguments() -> Namespace:
    from mindspeed.args_utils import get_full_args

    arguments: Namespace = get_full_args()
    return arguments


def _apply(original: Repatch, request: Request, settings: Mapping[str, object], arguments: Namespace) -> None:
    from mindspeed.patch_utils import MindSpeedPatchesManager

    from .snapshot import Snapshot

    before = Snapshot(MindSpeedPatchesManager, arguments)
    try:
        original(settings)
    except Exception as error:
        before.restore()
        raise _refused(request, settings, error) from error


def _refused(request: Request, settings: Mapping[str, object], error: Exception) -> RepatchError:
    keys = ", ".join(f"{key}={value}" for key, value in settings.items())
    fix = "leave out the override that the message is about; `verl-npu mindspeed --list` shows what goes together"
    if isinstance(error, ModuleNotFoundError):
        fix = f"the feature needs {error.name}: make it importable, or leave the override out"
        if str(error.name).startswith("megatron.training"):
            fix += " (megatron.training is in Megatron-LM's source, not in megatron-core)"
    return RepatchError(
        subject=f"{request.worker}: MindSpeed refused its overrides and everything was put back",
        expected="a combination that MindSpeed can apply",
        found=f"{type(error).__name__}: {error}, with {keys}",
        fix=fix,
        override=OVERRIDE,
    )


class _PatchList:
    """Takes the place of MindSpeed's patch manager, and only lists the patches that features register."""

    def __init__(self) -> None:
        self.patches: dict[str, tuple[str, ...]] = {}

    # The parameters are MindSpeed's.
    def register_patch(
        self, orig_func_name: str, new_func: object = None, force_patch: bool = False, create_dummy: bool = False
    ) -> None:
        name = f"{getattr(new_func, '__module__', '')}:{getattr(new_func, '__qualname__', new_func)}"
        self.patches[orig_func_name] = (*self.patches.get(orig_func_name, ()), name)


def _patches_for(
    request: Request, settings: Mapping[str, object], defaults: Mapping[str, object], arguments: Namespace
) -> Patches:
    """Return the patches that MindSpeed would make with `settings`, and make none of them."""
    from argparse import Namespace

    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager
    from mindspeed.patch_utils import MindSpeedPatchesManager

    from .snapshot import Snapshot

    candidate, listed = Namespace(**{**defaults, **settings}), _PatchList()
    features: list[MindSpeedFeature] = MindSpeedFeaturesManager.FEATURES_LIST
    before = Snapshot(MindSpeedPatchesManager, arguments)
    try:
        needed = [feature for feature in features if feature.is_need_apply(candidate)]
        for feature in needed:
            feature.pre_register_patches(listed, candidate)
        for feature in needed:
            feature.register_patches(listed, candidate)
    except Exception as error:
        raise _refused(request, settings, error) from error
    finally:
        # A few features set attributes of Megatron's classes while they register their patches.
        before.restore()
    return listed.patches


def _refuse_contradictions(
    settled: Settlement,
    request: Request,
    settings: Mapping[str, object],
    patches: Patches,
    contract: Contract,
) -> None:
    """Raise SettledError if `request` needs other patches, or another value of a key that MindSpeed reads at run time,
    than what is in force."""
    mine, theirs = {**settled.defaults, **settings}, {**settled.defaults, **settled.settings}
    differ = sorted(key for key in {*mine, *theirs} if not contract.alike(key, mine.get(key), theirs.get(key)))
    held = [key for key in differ if key in contract.process]
    if patches != settled.patches:
        held += [key for key in differ if key in contract.switches and key not in held]
    if not held and patches == settled.patches:
        return
    keys = held or differ
    raise SettledError(
        subject=f"{request.worker}: override_transformer_config",
        expected=f"what {settled.request.worker} has settled for this process: "
        + ", ".join(f"{key}={theirs.get(key)}" for key in keys),
        found=", ".join(f"{key}={mine.get(key)}" for key in keys),
        fix="MindSpeed patches a process once for all workers in it: set these alike for both, or give the two "
        "workers resource pools of their own",
        override=OVERRIDE,
    )
