"""The ways in, whether verl-npu is on or off, and the once-only guard.

Whatever comes first wins, the rest do nothing: the entry points of `torch.backends` (at the end of `import torch`, in
every process), `verl.plugins` and `vllm.general_plugins`, `VERL_USE_EXTERNAL_MODULES=verl_npu`, the line in upstream's
`verl/__init__.py`, or a plain `import verl_npu`. All of them only put a hook on `verl`: what costs time waits for it.

This module is part of every `import torch`, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys

from . import environment, reporting
from .damage import is_damage, is_passing
from .version import __version__

# typing alone would double what this module costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from .manifest import Activity
    from .session import Session

__all__ = ["activate", "autoload", "deactivate", "status"]

_TRIGGER = "verl"
# The module of an earlier plugin of the same name that applies its patches. It can be in one process with this package
# only if files of both lie in one folder.
_EARLIER = f"{__package__}.plugin"

# What the user knows the ways in as, by the function of others that calls one.
_TORCH = "the entry point torch.backends"
_ORIGINS = {
    "_import_device_backends": _TORCH,
    "load_general_plugins": "the entry point vllm.general_plugins",
    "load_plugins_by_group": "the entry point vllm.general_plugins",
    "import_external_libs": "VERL_USE_EXTERNAL_MODULES",
}
_VIRTUAL = "virtual_ascend.extensions"
_ENTRY = "verl_npu_entry"
# By the name that Python gives to what is no file.
_PROGRAMS = {
    "<string>": "an import in the program after python -c",
    "<stdin>": "an import in the program that Python reads from its input",
}

_active = False
_origin = ""
# By one name: the first of two threads that come at once makes it.
_sessions: dict[str, Session] = {}


def activate() -> None:
    """Patch verl in this process when it is imported, if there is Ascend software. Repeating it does nothing.

    Called by the end of `import torch` it never raises: what is wrong, the import of verl raises.
    """
    origin = _caller(sys._getframe(1))
    try:
        _activate(origin)
    except Exception as error:
        # Without its hook the import of verl could not raise it.
        if origin != _TORCH or not _active:
            raise
        _raise_from_trigger(error)


def _activate(origin: str) -> None:
    global _active, _origin
    if not _active and not _wanted_or_strict():
        return
    from .registry.apply import hooks

    if not _active:
        hooks.add_hook(_EARLIER, _refuse_earlier_plugin, before=True)
        hooks.add_hook(_TRIGGER, _begin, before=True)
        _origin = origin
        _active = True
    if _EARLIER in sys.modules:
        _refuse_earlier_plugin(sys.modules[_EARLIER])
    # It has not begun where it came after verl, nor where it was interrupted. The import of torch_npu, with which it
    # begins, may come back here.
    if _TRIGGER in sys.modules and not _begun() and not hooks.is_running(_begin.__code__):
        _begin(sys.modules[_TRIGGER])


def deactivate() -> None:
    """Take back every patch in this process. Repeating it does nothing."""
    global _active
    if _active:
        from .registry.apply import hooks

        hooks.remove_hook(_TRIGGER, _begin)
        hooks.remove_hook(_EARLIER, _refuse_earlier_plugin)
    for session in _sessions.values():
        session.end()
    _active = False


def status() -> Activity:
    """What verl-npu does in this process."""
    for session in _sessions.values():
        return {**session.activity(), "active": _active}
    from . import process

    return {
        "version": __version__,
        "active": _active,
        "origin": _origin,
        "simulated": bool(_simulated()),
        "role": process.role(),
        "upstreams": {},
        "features": {},
        "natives": {},
        "tainted": [],
        "seconds": 0.0,
    }


def _simulated() -> str:
    # The virtual Ascend marks its torch_npu; a real one has no such attribute.
    return str(getattr(sys.modules.get("torch_npu"), "__simulated__", ""))


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


def _begun() -> bool:
    return any(session.begun for session in _sessions.values())


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
        "the files that `verl-npu doctor` names (packages/verl-npu-workbench/docs/installation.md, After the earlier "
        "plugin)",
    )


def _raise_from_trigger(error: Exception) -> None:
    """Have the import of verl that is under way raise an error, which torch would take for its own.

    It would say that it cannot load us, and could not be imported again in this process. Each later import of verl
    begins again.
    """
    from .registry.apply import hooks

    verl = sys.modules.get(_TRIGGER)
    if getattr(getattr(verl, "__spec__", None), "_initializing", False):

        def refuse(module: ModuleType) -> None:
            hooks.remove_hook(_TRIGGER, refuse)
            if module is verl:
                raise error

        hooks.add_hook(_TRIGGER, refuse)
    elif verl is not None:
        reporting.warn(f"{error}; verl is imported already, so this could not be raised by its import")


def _begin(module: ModuleType) -> None:
    try:
        _begin_session()
    except Exception as error:
        if not is_damage(error):
            raise
        _give_up(error)


def _give_up(error: Exception) -> None:
    import verl_npu_entry

    line = str(error) if type(error).__name__ == "DamagedError" else verl_npu_entry.damage(error)
    refusal = ImportError(f"verl-npu: {line}", name=_TRIGGER)
    if verl_npu_entry.is_insisted_on():
        raise refusal from error
    try:
        deactivate()
    except Exception:
        # What was done cannot be taken back, for the same damage: verl must not be imported half patched.
        raise refusal from error
    # Not through `reporting`, which may be what is damaged.
    verl_npu_entry.say(f"{line}; verl-npu stays off in this process")


def _begin_session() -> None:
    if _EARLIER in sys.modules:
        _refuse_earlier_plugin(sys.modules[_EARLIER])
    if not _torch_npu_works():
        deactivate()
        return
    from .session import Session

    session = _sessions.get(_TRIGGER) or _sessions.setdefault(_TRIGGER, Session(_origin, _simulated))
    session.begin()


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
        if forced or environment.STRICT.read() or is_passing(error):
            raise
        reporting.warn(f"{error}; verl-npu stays off in this process")
        return False
    return True


def _caller(frame: FrameType | None) -> str:
    here = os.path.join(os.path.dirname(__file__), "")
    while frame is not None:
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name in _ORIGINS:
            return _ORIGINS[code.co_name]
        imports = name.startswith("importlib")
        group = getattr(frame.f_locals.get("self"), "group", "") if imports and code.co_name == "load" else ""
        if group:
            return "the start-up of virtual NPUs" if group == _VIRTUAL else f"the entry point {group}"
        # The entry points' own module lies beside the package, or elsewhere where that is installed from a checkout.
        if not imports and name != _ENTRY and not code.co_filename.startswith((here, "<frozen")):
            what = "the hook line" if name == _TRIGGER else "an import"
            return _PROGRAMS.get(code.co_filename, f"{what} in {code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return "unknown"


# The last: whoever can import it knows that the file is whole.
def autoload() -> None:
    """The entry point of `torch.backends`: called at the end of `import torch`, it never raises."""
    activate()
