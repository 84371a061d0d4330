"""The ways in, the switches, and the once-only guard.

Whatever comes first wins, the rest do nothing: the entry points of `torch.backends` (at the end of `import torch`, in
every process), `verl.plugins` and `vllm.general_plugins`, `VERL_USE_EXTERNAL_MODULES=verl_npu`, the line in upstream's
`verl/__init__.py`, or a plain `import verl_npu`. All of them only put a hook on `verl`: what costs time waits for it.

This module is part of every `import torch`, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys

# typing alone would double what this module costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

    from .registry.engine import Registry

__all__ = ["activate", "autoload", "deactivate", "manifest", "report", "status"]

_TRIGGER = "verl"
_ROLLOUTS = "verl.workers.rollout.base"
_REPLICAS = "verl.workers.rollout.replica"
_SWITCHES = ("", "auto", "on", "off")

# The functions of others that call the ways in, and what the user knows them as.
_ORIGINS = {
    "_import_device_backends": "the entry point torch.backends",
    "load_general_plugins": "the entry point vllm.general_plugins",
    "load_plugins_by_group": "the entry point vllm.general_plugins",
    "import_external_libs": "VERL_USE_EXTERNAL_MODULES",
}

_active = False
_virtual = False
_origin = ""
_registry: Registry | None = None
_reported: set[str] = set()


def activate() -> None:
    """Patch verl in this process when it is imported, if there is Ascend software. Repeating it does nothing."""
    global _active, _origin
    try:
        _bring_up_virtual()
        if _active or not _wanted():
            return
    except Exception as error:
        # Whatever goes wrong in us must not break `import torch` on a machine that may not even want us.
        report(f"{error}; verl-npu stays off in this process")
        deactivate()
        return
    from .registry import hooks

    _active = True
    _origin = _caller(sys._getframe(1))
    hooks.add_hook(_TRIGGER, _begin, before=True)
    if _TRIGGER in sys.modules:
        _begin(sys.modules[_TRIGGER])


def autoload() -> None:
    """Called at the end of `import torch`; never raises."""
    activate()


def deactivate() -> None:
    """Take back every patch in this process. Repeating it does nothing."""
    global _active
    if _active:
        from .registry import hooks

        hooks.remove_hook(_TRIGGER, _begin)
    if _registry is not None:
        _registry.deactivate()
    _active = False


def _bring_up_virtual() -> None:
    # Apart from the switch: with VERL_NPU=off the virtual NPUs stay, which is how one sees what upstream does alone.
    global _virtual
    if not _virtual_requested():
        return
    from . import virtual

    if not _virtual:
        from .registry import hooks

        virtual.expose()
        hooks.add_hook(_ROLLOUTS, _offer_rollout)
        hooks.add_hook(_REPLICAS, _offer_replica)
        _virtual = True
    # Before torch is there its own entry point will bring us back.
    if hasattr(sys.modules.get("torch"), "__version__"):
        virtual.load()


def _virtual_requested() -> bool:
    # The rule of `virtual.requested`, which whoever asks for nothing does not wait for.
    return os.environ.get("VERL_NPU_VIRTUAL", "").strip() not in ("", "0")


def _simulated() -> bool:
    virtual = sys.modules.get(f"{__package__}.virtual")
    return virtual is not None and bool(virtual.loaded())


def status() -> dict[str, Any]:
    """What verl-npu does in this process: the content of its manifest."""
    from . import __version__

    return {
        "version": __version__,
        "active": _active,
        "origin": _origin,
        "simulated": _simulated(),
        "role": _role(),
        **(_registry.report() if _registry is not None else {"upstreams": {}, "features": {}, "tainted": []}),
    }


def manifest() -> dict[str, Any]:
    """What verl-npu does in this process, and which process it is."""
    import socket

    return {"host": socket.gethostname(), "pid": os.getpid(), **status()}


def report(line: str) -> None:
    """Print one line on stderr, once."""
    if line not in _reported:
        _reported.add(line)
        print(f"verl-npu: {line}", file=sys.stderr, flush=True)


def _wanted() -> bool:
    switch = os.environ.get("VERL_NPU", "").strip().lower()
    if switch not in _SWITCHES:
        raise ValueError(f"VERL_NPU={switch!r}: expected on, off or auto; correct it or leave it out")
    if switch == "off":
        return False
    # Software decides, never visible devices: Ray hides all NPUs from actors that asked for none, and those must
    # decide as the workers do.
    return switch == "on" or _virtual_requested() or _has_torch_npu()


def _has_torch_npu() -> bool:
    # What importlib.util.find_spec does for a top-level name, without importing importlib.util.
    if "torch_npu" in sys.modules:
        return True
    searches = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return any(search is not None and search("torch_npu", None) is not None for search in searches)


def _begin(module: ModuleType) -> None:
    global _registry
    if not _torch_npu_works():
        deactivate()
        return
    if _registry is None:
        from .features import registry

        _registry = registry(report, _changed)
        if not _is_ray_worker():
            import atexit

            atexit.register(_at_exit)
    _registry.activate()
    if not _is_ray_worker():
        _summarise(_registry)


def _torch_npu_works() -> bool:
    # Some revisions of upstream look for torch.npu without importing torch_npu, and rely on torch's autoload.
    if not _has_torch_npu():
        return os.environ.get("VERL_NPU", "").strip().lower() == "on"
    try:
        import torch_npu  # noqa: F401  # for its effect on torch
    except Exception as error:
        report(f"torch_npu is installed and cannot be imported ({error}); verl-npu stays off in this process")
        return False
    return True


def _offer_rollout(module: ModuleType) -> None:
    """Enter the rollout engine of the virtual Ascend into upstream's registry: there only, never on real NPUs."""
    from .virtual.rollout import register_rollout

    register_rollout(module)


def _offer_replica(module: ModuleType) -> None:
    """The same for the server of the revisions that have one."""
    from .virtual.rollout import register_replica

    register_replica(module)


def _summarise(registry: Registry) -> None:
    from . import __version__

    found = {name: revision for name, revision in registry.revisions.items() if revision.nearest_pin}
    upstream = ", ".join(f"{name} {revision}" for name, revision in found.items())
    states = registry.states()
    features = ", ".join(f"{name} {state}" for name, state in states.items()) or "no features"
    mark = "SIMULATED: virtual NPUs; " if _simulated() else ""
    taint = f"; TAINTED: {', '.join(registry.tainted)} applied by force" if registry.tainted else ""
    report(f"{__version__}: {mark}{upstream}; {features}{taint}")


def _changed(registry: Registry) -> None:
    folder = os.environ.get("VERL_NPU_MANIFEST_DIR")
    if folder:
        from pathlib import Path

        from .registry.manifest import write_manifest

        try:
            write_manifest(Path(folder), manifest())
        except OSError as error:
            report(f"VERL_NPU_MANIFEST_DIR={folder}: cannot write the manifest there: {error}; give a writable folder")
    if _is_ray_worker():
        from .features.fleet import publish

        publish(manifest())


def _at_exit() -> None:
    if _registry is not None:
        _changed(_registry)


def _is_ray_worker() -> bool:
    return sys.argv[:1] != [] and os.path.basename(sys.argv[0]) == "default_worker.py"


def _role() -> str:
    """Driver, or the class of the Ray actor that this process is.

    Ray keeps it in the title of the process, for `ps`; asking Ray itself would import it.
    """
    if not _is_ray_worker():
        return "driver"
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            title = stream.read().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return "ray worker"
    return title.removeprefix("ray::").partition(".")[0] or "ray worker"


def _caller(frame: FrameType | None) -> str:
    here = os.path.dirname(__file__)
    while frame is not None:
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name in _ORIGINS:
            return _ORIGINS[code.co_name]
        if not name.startswith("importlib") and not code.co_filename.startswith((here, "<frozen")):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"
