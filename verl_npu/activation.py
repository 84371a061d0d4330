"""The ways in, whether verl-npu is on or off, and the once-only guard.

Whatever comes first wins, the rest do nothing: the entry points of `torch.backends` (at the end of `import torch`, in
every process), `verl.plugins` and `vllm.general_plugins`, `VERL_USE_EXTERNAL_MODULES=verl_npu`, the line in upstream's
`verl/__init__.py`, or a plain `import verl_npu`. All of them only put a hook on `verl`: what costs time waits for it.

This module is part of every `import torch`, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys

from . import damage, environment, reporting
from .version import __version__

# typing alone would double what this module costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from .manifest import Activity
    from .registry.apply.lifecycle import Lifecycle, Mutex
    from .registry.state import RegistryActivity
    from .session import Session

__all__ = ["PLAIN", "activate", "deactivate", "status"]

PLAIN = "import verl_npu"
"""The origin of an activation that no entry point began: the hook line, an external module, or a program's import."""
_TORCH = "the entry point torch.backends"
_TRIGGER = "verl"
# The module of an earlier plugin of the same name that applies its patches. It can be in one process with this package
# only if files of both lie in one folder.
_EARLIER = f"{__package__}.plugin"

_origin = ""
# By one name: the first of two threads that come at once makes it.
_lifecycles: dict[str, Lifecycle] = {}
_owed: list[tuple[Exception, ModuleType]] = []


def deactivate() -> None:
    """Take back every patch in this process. Repeating it does nothing."""
    for lifecycle in _lifecycles.values():
        from .registry.apply import hooks

        hooks.remove_hook(_EARLIER, _refuse_earlier_plugin)
        hooks.remove_hook(_TRIGGER, _raise_owed)
        lifecycle.deactivate()


def status() -> Activity:
    """Return what verl-npu does in this process. Printed, it is one line, which says why verl-npu is off if it is."""
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
    """Whether verl is to be patched; under strict also if that cannot be told, so that the import of verl says why."""
    try:
        return _wanted()
    except Exception as error:
        # Whatever goes wrong in us must not break `import torch` on a machine that may not even want us.
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
    # Software decides, never visible devices: Ray hides all NPUs from actors that asked for none, and those must
    # decide as the workers do.
    return switch == "on" or _has_torch_npu()


def _has_torch_npu() -> bool:
    # What importlib.util.find_spec does for a top-level name, without importing importlib.util.
    if "torch_npu" in sys.modules:
        return True
    for finder in sys.meta_path:
        search = getattr(finder, "find_spec", None)
        spec = search("torch_npu", None) if search is not None else None
        if spec is not None:
            # A mere folder of that name has no origin: it is no package that could be imported.
            return spec.origin is not None
    return False


def _refuse_earlier_plugin(module: ModuleType) -> None:
    from .errors import EarlierPluginError

    raise EarlierPluginError(
        subject=os.path.dirname(__file__),
        expected="this package alone",
        found=f"the earlier plugin of the same name in one process with it ({module.__name__})",
        fix="pip uninstall verl_npu until it finds none, remove that folder, install this package again, and restore "
        "the files that `verl-npu doctor` names (docs/install.md, Replace the earlier plugin)",
    )


def _raise_from_trigger(error: Exception) -> None:
    """Have the import of verl that is under way raise an error, which torch would take for its own.

    It would say that it cannot load us, and could not be imported again in this process. Each later import of verl
    begins again.
    """
    from .registry.apply import hooks

    verl = sys.modules.get(_TRIGGER)
    if verl is not None and getattr(verl.__spec__, "_initializing", False):
        _owed[:] = [(error, verl)]
        hooks.add_hook(_TRIGGER, _raise_owed)
    elif verl is not None:
        reporting.warn(f"{error}; verl is imported already, so this could not be raised by its import")


def _raise_owed(module: ModuleType) -> None:
    from .registry.apply import hooks

    hooks.remove_hook(_TRIGGER, _raise_owed)
    for error, verl in _owed:
        if module is verl:
            raise error


def _make(mutex: Mutex) -> Session | None:
    """Make what patches verl; None, and nothing more is done, where there turns out to be no Ascend software."""
    if _EARLIER in sys.modules:
        _refuse_earlier_plugin(sys.modules[_EARLIER])
    if not _torch_npu_works():
        deactivate()
        return None
    from .session import Session

    return Session(mutex, status)


def _torch_npu_works() -> bool:
    # Some revisions of upstream look for torch.npu without importing torch_npu, and rely on torch's autoload.
    forced = environment.SWITCH.read() == "on"
    if not _has_torch_npu():
        return forced
    from .ascend import software
    from .errors import AscendSoftwareError

    try:
        software.import_torch_npu()
    except AscendSoftwareError as error:
        # Who insists on NPUs does not want a job that runs on the CPU.
        if forced or environment.STRICT.read() or damage.is_passing(error):
            raise
        reporting.warn(f"{error}; verl-npu stays off in this process")
        return False
    return True


def _give_up(error: Exception) -> None:
    """Leave verl alone, whole, if an error shows that files of ours are damaged; raise any other."""
    if not damage.is_damage(error):
        raise error
    line = damage.described(error)
    refusal = ImportError(f"verl-npu: {line}", name=_TRIGGER)
    if damage.is_insisted_on():
        raise refusal from error
    try:
        deactivate()
    except Exception:
        # What was done cannot be taken back, for the same damage: verl must not be imported half patched.
        raise refusal from error
    damage.say(f"{line}; verl-npu stays off in this process")


# The last: whoever can import it knows that the file is whole.
def activate(origin: str = PLAIN) -> None:
    """Patch verl in this process when it is imported, if there is Ascend software. Repeating it does nothing.

    Called by the end of `import torch` it never raises: what is wrong, the import of verl raises.
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
        # Without its hook the import of verl could not raise it.
        if origin != _TORCH or not _is_active():
            raise
        _raise_from_trigger(error)
