"""Activation of verl-npu: patches verl in this process, or leaves it alone.

A process can activate verl-npu in several ways: through the entry points of `torch.backends` (at the end of
`import torch`, in every process), `verl.plugins`, and `vllm.general_plugins`; through
`VERL_USE_EXTERNAL_MODULES=verl_npu`; through the line in upstream's `verl/__init__.py`; or through a plain
`import verl_npu`. The first one that runs activates verl-npu, and the others do nothing. Activation only puts a hook
on `verl`. All slow work waits until verl is imported.

Every `import torch` loads this module, so it imports almost nothing itself.
"""

from __future__ import annotations

import os
import sys

from . import damage, environment, reporting
from .version import __version__

# Importing typing would double the cost of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from .manifest import Activity
    from .registry.apply.lifecycle import Lifecycle, Mutex
    from .registry.state import RegistryActivity
    from .session import Session

PLAIN = "import verl_npu"
"""The origin of an activation that came through no entry point, but through the hook line in verl, an external module,
or a program's own import."""
_TORCH = "the entry point torch.backends"
_TRIGGER = "verl"
# The module of an earlier plugin of the same name that applies its patches. Both can be in one process only if their
# files lie in one folder.
_EARLIER = f"{__package__}.plugin"

_origin = ""
# Keyed by one constant name: if two threads come at once, setdefault keeps the object of only one thread.
_lifecycles: dict[str, Lifecycle] = {}
_pending_errors: list[tuple[Exception, ModuleType]] = []


def deactivate() -> None:
    """Undo every patch in this process. Calling this function again has no effect."""
    for lifecycle in _lifecycles.values():
        from .registry.apply import hooks

        hooks.remove_hook(_EARLIER, _refuse_earlier_plugin)
        hooks.remove_hook(_TRIGGER, _raise_pending)
        lifecycle.deactivate()


def status() -> Activity:
    """Return everything that verl-npu has done in this process. If verl-npu is off, the repr of the result says why,
    in one line."""
    from . import process
    from .manifest import Shown, why_off

    activity: RegistryActivity = {"upstreams": {}, "features": {}, "natives": {}, "tainted": [], "seconds": 0.0}
    for lifecycle in _lifecycles.values():
        activity = activity if lifecycle.work is None else lifecycle.work.activity()
    said: Activity = {
        "version": __version__,
        "active": _is_active(),
        "origin": _origin,
        "simulated": bool(process.simulated()),
        "role": process.role(),
        **activity,
    }
    return Shown(said, "" if said["active"] else why_off(_wanted))  # type: ignore[return-value]


def _is_active() -> bool:
    return any(lifecycle.active for lifecycle in _lifecycles.values())


def _wanted_or_strict() -> bool:
    """Return whether to patch verl.

    If an invalid setting or another error prevents the decision, print a warning and return False. With
    VERL_NPU_STRICT=1, return True instead, and the import of verl then raises the error.
    """
    try:
        return _wanted()
    except Exception as error:
        # No fault of verl-npu may break `import torch` on a machine that may not even need verl-npu.
        if _strict():
            return True
        reporting.warn(f"{error}; verl-npu stays off in this process")
        return False


def _strict() -> bool:
    from .errors import SettingError

    try:
        return environment.STRICT.read()
    except SettingError:
        return True


def _wanted() -> bool:
    switch = environment.SWITCH.read()
    if switch == "off":
        return False
    # The installed software decides, never the visible devices: Ray hides all NPUs from actors that asked for none,
    # and those actors must decide as the workers do.
    return switch == "on" or _has_torch_npu()


def _has_torch_npu() -> bool:
    # Do what importlib.util.find_spec does for a top-level name, without importing importlib.util.
    if "torch_npu" in sys.modules:
        return True
    for finder in sys.meta_path:
        search = getattr(finder, "find_spec", None)
        spec = search("torch_npu", None) if search is not None else None
        if spec is not None:
            # A plain folder of that name has no origin, and cannot be imported as a package.
            return spec.origin is not None
    return False


def _refuse_earlier_plugin(module: ModuleType) -> None:
    from .errors import AscendSoftwareError

    raise AscendSoftwareError(
        subject=os.path.dirname(__file__),
        found=f"an earlier plugin named verl_npu is loaded in the same process ({module.__name__})",
        fix="run `pip uninstall verl_npu` until nothing is left to uninstall, remove the folder named above, "
        "reinstall this package, and restore the files that `verl-npu doctor` names (docs/install.md, Replace the "
        "earlier plugin)",
    )


def _raise_from_trigger(error: Exception) -> None:
    """Make the import of verl that is now running raise `error`.

    This function must not raise the error itself. torch would report that it cannot load verl-npu, and then torch
    could not be imported again in this process. Each later import of verl tries everything again.
    """
    from .registry.apply import hooks

    verl = sys.modules.get(_TRIGGER)
    if verl is not None and getattr(verl.__spec__, "_initializing", False):
        _pending_errors[:] = [(error, verl)]
        hooks.add_hook(_TRIGGER, _raise_pending)
    elif verl is not None:
        reporting.warn(f"{error}; verl is already imported, so its import could not raise this error")


def _raise_pending(module: ModuleType) -> None:
    from .registry.apply import hooks

    hooks.remove_hook(_TRIGGER, _raise_pending)
    for error, verl in _pending_errors:
        if module is verl:
            raise error


def _make(mutex: Mutex) -> Session | None:
    """Create the session that patches verl, or return None if torch_npu does not work."""
    if _EARLIER in sys.modules:
        _refuse_earlier_plugin(sys.modules[_EARLIER])
    if not _torch_npu_works():
        deactivate()
        return None
    from .session import Session

    return Session(mutex, status)


def _torch_npu_works() -> bool:
    # Some revisions of upstream look for torch.npu without importing torch_npu, because torch loads it by itself.
    forced = environment.SWITCH.read() == "on"
    if not _has_torch_npu():
        return forced
    from .ascend import software
    from .errors import AscendSoftwareError

    try:
        software.import_torch_npu()
    except AscendSoftwareError as error:
        # A user who sets VERL_NPU=on or strict does not want a job that runs on the CPU.
        if forced or environment.STRICT.read() or damage.is_temporary(error):
            raise
        reporting.warn(f"{error}; verl-npu stays off in this process")
        return False
    return True


def _give_up(error: Exception) -> None:
    """Leave verl unpatched if the error shows that files of verl-npu are damaged; raise any other error."""
    if not damage.is_damage(error):
        raise error
    line = damage.described(error)
    refusal = ImportError(f"verl-npu: {line}", name=_TRIGGER)
    if damage.is_required():
        raise refusal from error
    try:
        deactivate()
    except Exception:
        # The same damage keeps the patches from being undone, and a half-patched verl must not be imported.
        raise refusal from error
    damage.say(f"{line}; verl-npu stays off in this process")


# This function comes last in the file: if it can be imported, the file is complete.
def activate(origin: str = PLAIN) -> None:
    """Patch verl when this process imports it, if Ascend software is installed. Calling this function again has no
    effect.

    If torch calls this function at the end of `import torch`, an error is not raised immediately, but when verl is
    imported.
    """
    global _origin
    if not _is_active():
        if not _wanted_or_strict():
            return
        _origin = origin
    from .registry.apply import hooks
    from .registry.apply.lifecycle import Lifecycle

    lifecycle = _lifecycles.get(_TRIGGER) or _lifecycles.setdefault(_TRIGGER, Lifecycle(_TRIGGER, _make, _give_up))
    try:
        hooks.add_hook(_EARLIER, _refuse_earlier_plugin, before=True)
        lifecycle.activate()
        if _EARLIER in sys.modules:
            _refuse_earlier_plugin(sys.modules[_EARLIER])
    except Exception as error:
        # Without its hook, the import of verl could not raise the error.
        if origin != _TORCH or not _is_active():
            raise
        _raise_from_trigger(error)
