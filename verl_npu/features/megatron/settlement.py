"""What this process has settled with MindSpeed: once what is patched, for each worker what its model is made of."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import VerlNpuError
from .contract import Contract
from .installation import installation
from .overrides import Request, check
from .snapshot import Snapshot

__all__ = ["RepatchError", "SettledError", "Settlement", "asked", "current", "put_in_force", "settle"]

_OVERRIDE = "VERL_NPU_DISABLE=megatron"
Repatch = Callable[[Mapping[str, Any]], Any]


class RepatchError(VerlNpuError):
    """MindSpeed raised; torch, Megatron, sys.modules and MindSpeed's own state are as before."""


class SettledError(VerlNpuError):
    """Another worker in this process has settled otherwise what holds for the whole process."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is in force: for which worker, with which settings, and the patches that they make."""

    request: Request
    settings: Mapping[str, Any]
    patches: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any]
    """MindSpeed's arguments before anybody asked for anything."""


_in_force: Settlement | None = None
_asked: list[Request] = []


def current() -> Settlement | None:
    """What is in force in this process."""
    return _in_force


@contextlib.contextmanager
def asked(request: Request) -> Iterator[None]:
    """Within, whoever calls `repatch` speaks for the worker of `request`, whatever he gives it."""
    _asked.append(request)
    try:
        yield
    finally:
        _asked.remove(request)


def settle(request: Request) -> None:
    """Put `request` in force through MindSpeed's own repatch, checked; does nothing where it is not imported.

    Raises OverrideError, SettledError or RepatchError; the process is then as before.
    """
    adaptor = sys.modules.get("mindspeed.megatron_adaptor")
    if adaptor is not None:
        with asked(request):
            adaptor.repatch(dict(request.overrides))


def put_in_force(original: Repatch, overrides: Mapping[str, Any]) -> None:
    """Do what `repatch` is called for, `original` being MindSpeed's, for the worker that asks just now."""
    global _in_force
    request = _asked[-1] if _asked else Request("a caller of repatch", plain(overrides), {})
    contract = installation().contract
    settings = _typed(check(request, contract))
    if _in_force is not None and dict(_in_force.settings) == settings:
        return
    arguments = _arguments()
    defaults = _in_force.defaults if _in_force is not None else dict(vars(arguments))
    patches = _rehearsed(request, settings, defaults, arguments)
    if _in_force is None:
        _apply(original, request, settings, arguments)
    else:
        _refuse_contradictions(_in_force, request, settings, patches, contract, defaults)
        # Nothing is patched anew: what differs is read when a model is built, and no key of another worker stays.
        vars(arguments).clear()
        vars(arguments).update({**defaults, **settings})
    _in_force = Settlement(request, settings, patches, defaults)


def plain(mapping: Any) -> dict[str, Any]:
    """A mapping of OmegaConf's, or any other, as a dict of plain values."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(mapping):
        container = omegaconf.OmegaConf.to_container(mapping, resolve=True)
        return {str(key): value for key, value in container.items()}
    return dict((mapping or {}).items())


def _typed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with Megatron's own type where a configuration file can only have its name."""
    backend = settings.get("attention_backend")
    if not isinstance(backend, str):
        return settings
    from megatron.core.transformer.enums import AttnBackend

    return {**settings, "attention_backend": AttnBackend[backend]}


def _arguments() -> Any:
    from mindspeed.args_utils import get_full_args

    return get_full_args()


def _apply(original: Repatch, request: Request, settings: Mapping[str, Any], arguments: Any) -> None:
    from mindspeed.patch_utils import MindSpeedPatchesManager

    before = Snapshot(MindSpeedPatchesManager, arguments)
    try:
        original(settings)
    except Exception as error:
        before.restore()
        raise _refused(request, settings, error) from error


def _refused(request: Request, settings: Mapping[str, Any], error: Exception) -> RepatchError:
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
        override=_OVERRIDE,
    )


class _Rehearsal:
    """Stands for MindSpeed's patch manager and only writes down what it is told."""

    def __init__(self) -> None:
        self.patches: dict[str, tuple[str, ...]] = {}

    def register_patch(
        self, orig_func_name: str, new_func: Any = None, force_patch: bool = False, create_dummy: bool = False
    ) -> None:
        name = f"{getattr(new_func, '__module__', '')}:{getattr(new_func, '__qualname__', new_func)}"
        self.patches[orig_func_name] = (*self.patches.get(orig_func_name, ()), name)


def _rehearsed(
    request: Request, settings: Mapping[str, Any], defaults: Mapping[str, Any], arguments: Any
) -> dict[str, tuple[str, ...]]:
    """The patches that MindSpeed would make of `settings`, without any of them being made."""
    from argparse import Namespace

    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager
    from mindspeed.patch_utils import MindSpeedPatchesManager

    candidate, rehearsal = Namespace(**{**defaults, **settings}), _Rehearsal()
    before = Snapshot(MindSpeedPatchesManager, arguments)
    try:
        needed = [f for f in MindSpeedFeaturesManager.FEATURES_LIST if f.is_need_apply(candidate)]
        for feature in needed:
            feature.pre_register_patches(rehearsal, candidate)
        for feature in needed:
            feature.register_patches(rehearsal, candidate)
    except Exception as error:
        raise _refused(request, settings, error) from error
    finally:
        # A few features assign straight to Megatron's classes.
        before.restore()
    return rehearsal.patches


def _refuse_contradictions(
    settled: Settlement,
    request: Request,
    settings: Mapping[str, Any],
    patches: Mapping[str, tuple[str, ...]],
    contract: Contract,
    defaults: Mapping[str, Any],
) -> None:
    mine, theirs = {**defaults, **settings}, {**defaults, **settled.settings}
    differ = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
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
        override=_OVERRIDE,
    )
