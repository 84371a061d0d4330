"""Checks around MindSpeed's `repatch`. A process has one set of patches, and the overrides of one worker at a time.

If MindSpeed fails, we restore every object that it changed.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ...errors import ApplyError, JobSettingError, UnavailableError
from ...registry.apply.slots import Owner, namespace, read_namespace
from .request import OVERRIDE, Request

if TYPE_CHECKING:
    from argparse import Namespace

    from .contract import Contract

Patches = Mapping[str, tuple[str, ...]]
Repatch: TypeAlias = "Callable[[Mapping[str, object]], object]"
"""The type of MindSpeed's `repatch`."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The current state of MindSpeed: the most recent request from a worker, the settings passed to MindSpeed, and the
    resulting patches."""

    request: Request
    settings: Mapping[str, object]
    patches: Patches
    """For each target, by its dotted name, the functions that MindSpeed puts in its place."""
    defaults: Mapping[str, object]
    """MindSpeed's arguments before any worker changed them."""


_applied: Applied | None = None
_callers: list[Request] = []


@contextlib.contextmanager
def on_behalf_of(request: Request) -> Iterator[None]:
    """Within the `with` block, each call of MindSpeed's `repatch` applies `request` instead of the overrides that the
    caller passes."""
    _callers.append(request)
    try:
        yield
    finally:
        _callers.remove(request)


def repatch(request: Request) -> None:
    """Check `request`, and apply it through MindSpeed's own `repatch`. Do nothing if MindSpeed is not installed.

    Raises JobSettingError if an override is rejected, ApplyError if MindSpeed cannot be patched, and UnavailableError
    if a package is missing. If an error is raised, the state of the process is unchanged.
    """
    refuse_to_go_without_mindspeed(request.worker)
    adaptor = sys.modules.get("mindspeed.megatron_adaptor")
    if adaptor is not None:
        with on_behalf_of(request):
            adaptor.repatch(dict(request.overrides))


def refuse_to_go_without_mindspeed(worker: str) -> None:
    """Raise UnavailableError if MindSpeed is installed but could not be imported. verl ignores the failed import, and
    would train with an unpatched Megatron.
    """
    from .source import advice, missing_packages, package_folder

    folder = package_folder("mindspeed", "features_manager")
    if folder is None or "mindspeed.megatron_adaptor" in sys.modules:
        return
    missing = missing_packages(folder)
    raise UnavailableError(
        subject=worker,
        expected="MindSpeed to be imported in this process, because Megatron does not run on NPUs without it",
        found=f"an import of MindSpeed that failed silently, because {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not installed"
        if missing
        else "an import of MindSpeed that failed silently",
        fix=advice(missing) if missing else "run `python -c 'import mindspeed.megatron_adaptor'` to see the error",
        override=OVERRIDE,
    )


def checked_repatch(original: Repatch, overrides: Mapping[str, object]) -> None:
    """Check the overrides, and apply them. `original` is MindSpeed's `repatch`, and `overrides` is its argument.

    Raises JobSettingError if an override is rejected, and ApplyError if MindSpeed cannot be patched. If an error is
    raised, the state of the process is unchanged.
    """
    global _applied
    from .rules import check
    from .source import installation

    request = _callers[-1] if _callers else Request("a caller of repatch", plain_values(overrides), {}, forward=False)
    contract = installation().contract
    settings = _with_megatrons_types(check(request, contract))
    if _applied is not None and dict(_applied.settings) == settings:
        return
    from mindspeed.args_utils import get_full_args

    arguments: Namespace = get_full_args()
    defaults = _applied.defaults if _applied is not None else dict(vars(arguments))
    patches = _patches_for(request, settings, defaults, arguments)
    if _applied is None:
        _apply(original, request, settings, arguments)
    else:
        _refuse_conflicts(_applied, request, settings, patches, contract)
        # We patch nothing again, because the differing settings are read when a model is built. Clearing the
        # arguments removes the other worker's keys.
        vars(arguments).clear()
        vars(arguments).update({**defaults, **settings})
    _applied = Applied(request, settings, patches, defaults)


def plain_values(mapping: object) -> dict[str, object]:
    """Return a configuration as a dict of plain values, or an empty dict for None."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(mapping):
        container = omegaconf.OmegaConf.to_container(mapping, resolve=True)
        return {str(key): value for key, value in container.items()}
    return dict(cast("Mapping[str, object]", mapping or {}).items())


def _with_megatrons_types(settings: dict[str, object]) -> dict[str, object]:
    """Replace the name of the attention backend with Megatron's enum member. YAML can only hold the name."""
    backend = settings.get("attention_backend")
    if not isinstance(backend, str):
        return settings
    from megatron.core.transformer.enums import AttnBackend

    return {**settings, "attention_backend": AttnBackend[backend]}


def _apply(original: Repatch, request: Request, settings: Mapping[str, object], arguments: Namespace) -> None:
    from mindspeed.patch_utils import MindSpeedPatchesManager

    before = SavedState(MindSpeedPatchesManager, arguments)
    try:
        original(settings)
    except Exception as error:
        before.restore()
        raise _rejection(request, settings, error) from error


def _rejection(request: Request, settings: Mapping[str, object], error: Exception) -> ApplyError:
    keys = ", ".join(f"{key}={value}" for key, value in settings.items())
    fix = "remove the override that the message names; `verl-npu lint --list-overrides` shows valid combinations"
    if isinstance(error, ModuleNotFoundError):
        fix = f"make {error.name} importable, because the feature needs it, or remove the override"
        if str(error.name).startswith("megatron.training"):
            fix += " (megatron.training is in Megatron-LM's source, not in megatron-core)"
    return ApplyError(
        subject=f"{request.worker}: override_transformer_config",
        found=f"MindSpeed cannot apply the combination of {keys}, so verl-npu has undone all changes: "
        f"{type(error).__name__}: {error}",
        fix=fix,
        override=OVERRIDE,
    )


class _PatchList:
    """A substitute for MindSpeed's patch manager. It only lists the patches that features register."""

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
    """Return the patches that MindSpeed would apply with `settings`, without applying them."""
    from argparse import Namespace

    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager
    from mindspeed.patch_utils import MindSpeedPatchesManager

    candidate, listed = Namespace(**{**defaults, **settings}), _PatchList()
    features: list[Any] = MindSpeedFeaturesManager.FEATURES_LIST
    before = SavedState(MindSpeedPatchesManager, arguments)
    try:
        needed = [feature for feature in features if feature.is_need_apply(candidate)]
        for feature in needed:
            feature.pre_register_patches(listed, candidate)
        for feature in needed:
            feature.register_patches(listed, candidate)
    except Exception as error:
        raise _rejection(request, settings, error) from error
    finally:
        # A few features set attributes of Megatron's classes while they register their patches.
        before.restore()
    return listed.patches


def _refuse_conflicts(
    first: Applied, request: Request, settings: Mapping[str, object], patches: Patches, contract: Contract
) -> None:
    """Raise JobSettingError if `request` conflicts with the request that another worker has already applied.

    It conflicts if it needs different patches, or a different value of a key that MindSpeed reads at run time.
    """
    mine, theirs = {**first.defaults, **settings}, {**first.defaults, **first.settings}
    differ = sorted(key for key in {*mine, *theirs} if not contract.alike(key, mine.get(key), theirs.get(key)))
    held = [key for key in differ if key in contract.process]
    if patches != first.patches:
        held += [key for key in differ if key in contract.switches and key not in held]
    if not held and patches == first.patches:
        return
    keys = held or differ
    raise JobSettingError(
        subject=f"{request.worker}: override_transformer_config",
        expected=f"the values that {first.request.worker} uses in this process: "
        + ", ".join(f"{key}={theirs.get(key)}" for key in keys),
        found=", ".join(f"{key}={mine.get(key)}" for key in keys),
        fix="set the same values for both workers, or give each worker its own resource pool, because MindSpeed "
        "patches a process once for all its workers",
        override=OVERRIDE,
    )


DUMMY_FILE = "mindspeed.dummy_module.py"
"""The `__file__` of the empty modules that MindSpeed puts into sys.modules."""
_OWN_PACKAGES = ("megatron", "mindspeed")
_GONE = object()


class SavedState:
    """A snapshot of torch, Megatron, MindSpeed, and sys.modules.

    `restore` restores all attributes of Megatron's and MindSpeed's modules and classes. In all other modules, it
    restores only the names that MindSpeed patches, because other threads may change the rest. MindSpeed replaces its
    targets in every module that imported them, so all modules must be searched. `arguments` are MindSpeed's arguments
    in this process.
    """

    __slots__ = ("_classes", "_manager", "_modules", "_namespaces", "_patches", "_settings", "arguments")

    def __init__(self, manager: Any, arguments: Namespace) -> None:
        self._manager = manager
        self.arguments = arguments
        self._settings = dict(vars(arguments))
        self._modules = dict(sys.modules)
        self._namespaces = [
            (name, module, dict(namespace(module)))
            for name, module in self._modules.items()
            if isinstance(module, types.ModuleType)
        ]
        self._patches = {name: (patch, _copied(vars(patch))) for name, patch in manager.patches_info.items()}
        classes = {c for name, _, contents in self._namespaces if _is_own(name) for c in _classes_of(name, contents)}
        owners = (patch.orig_module for patch in manager.patches_info.values())
        classes |= {owner for owner in owners if isinstance(owner, type)}
        self._classes = [(one, dict(vars(one))) for one in classes]

    def restore(self) -> None:
        """Restore the snapshot. Modules that were imported since it was taken stay imported."""
        patches = dict(self._manager.patches_info)
        failed = {id(patch.final_patch_func): patch.orig_func for patch in patches.values() if patch.final_patch_func}
        names = {patch.orig_func_name for patch in patches.values() if patch.orig_func_name}
        # Newer revisions also look up the patched classes in every module, and torch.ops creates what is looked up.
        names |= {patch.orig_module_name.rpartition(".")[2] for patch in patches.values()}

        for name in [name for name in sys.modules if name not in self._modules and _is_dummy(sys.modules[name])]:
            del sys.modules[name]
        for name, module, before in self._namespaces:
            _restore(module, before, None if _is_own(name) or _is_dummy(module) else names)
        for one, before in self._classes:
            _restore(one, before, None if _is_own(one.__module__) else names)
        for owner, name in self._new_attributes(patches, names):
            original = failed.get(id(read_namespace(owner).get(name, _GONE)), _GONE)
            if original is not _GONE:
                _set(owner, name, original)

        self._manager.patches_info.clear()
        for name, (patch, state) in self._patches.items():
            vars(patch).clear()
            vars(patch).update(_copied(state))
            self._manager.patches_info[name] = patch
        vars(self.arguments).clear()
        vars(self.arguments).update(self._settings)
        for name, known in self._modules.items():
            sys.modules.setdefault(name, known)

    def _new_attributes(self, patches: Mapping[str, Any], names: set[str]) -> Iterator[tuple[Owner, str]]:
        """Yield the attributes that the snapshot does not have, and that may hold the function of a failed patch."""
        for name, module in list(sys.modules.items()):
            if name not in self._modules and isinstance(module, types.ModuleType):
                yield from ((module, key) for key in names & namespace(module).keys())
        known = {one for one, _ in self._classes}
        for patch in patches.values():
            if isinstance(patch.orig_module, type) and patch.orig_module not in known and patch.orig_func_name:
                yield patch.orig_module, patch.orig_func_name


@contextlib.contextmanager
def own_functions_restored(manager: Any) -> Iterator[None]:
    """When the `with` block ends, restore the functions that MindSpeed's modules define, except those that MindSpeed
    itself patches."""
    defined = [
        (module, name, value)
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "mindspeed" and isinstance(module, types.ModuleType)
        for name, value in namespace(module).items()
        if getattr(value, "__module__", None) == module_name and f"{module_name}.{name}" not in manager.patches_info
    ]
    try:
        yield
    finally:
        for module, name, value in defined:
            namespace(module)[name] = value


@contextlib.contextmanager
def without_lazy_aliases() -> Iterator[None]:
    """Context manager that disables lookups in transformers' alias modules, so that a lookup finds nothing and imports
    nothing."""
    aliases = [
        (module, namespace(module)["__getattr__"])
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and isinstance(module, types.ModuleType) and _is_alias(module)
    ]
    for module, _ in aliases:
        namespace(module).pop("__getattr__", None)
    try:
        yield
    finally:
        for module, answer in aliases:
            namespace(module).setdefault("__getattr__", answer)


def _is_alias(module: types.ModuleType) -> bool:
    """Return whether transformers made the module in memory, without a file."""
    contents = namespace(module)
    return "__getattr__" in contents and contents.get("__file__") is None


def remove_placeholder_modules(package: str) -> None:
    """Remove the empty modules that MindSpeed created for `package` from sys.modules. Modules of a real package are
    kept."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package and _is_dummy(sys.modules[name])]:
        del sys.modules[name]


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in _OWN_PACKAGES


def _is_dummy(module: object) -> bool:
    return isinstance(module, types.ModuleType) and namespace(module).get("__file__") == DUMMY_FILE


def _classes_of(module: str, contents: Mapping[str, object]) -> Iterator[type]:
    return (value for value in contents.values() if isinstance(value, type) and value.__module__ == module)


def _restore(owner: Owner, before: Mapping[str, object], names: set[str] | None) -> None:
    """Restore attributes of `owner` from `before`: all of them, or only those in `names`."""
    now = dict(read_namespace(owner))
    for key in now.keys() - before.keys():
        if (names is None or key in names) and not _is_submodule(owner, key, now[key]):
            _set(owner, key, _GONE)
    for key, value in before.items():
        if (names is None or key in names) and now.get(key, _GONE) is not value:
            _set(owner, key, value)


def _is_submodule(owner: Owner, key: str, value: object) -> bool:
    if not isinstance(owner, types.ModuleType) or not isinstance(value, types.ModuleType):
        return False
    return sys.modules.get(f"{owner.__name__}.{key}") is value


def _set(owner: Owner, key: str, value: object) -> None:
    if isinstance(owner, types.ModuleType):
        # setattr would make a lazy module load itself.
        contents = namespace(owner)
        if value is _GONE:
            contents.pop(key, None)
        else:
            contents[key] = value
    elif value is _GONE:
        delattr(owner, key)
    else:
        setattr(owner, key, value)


def _copied(state: Mapping[str, object]) -> dict[str, object]:
    return {key: list(value) if isinstance(value, list) else value for key, value in state.items()}
