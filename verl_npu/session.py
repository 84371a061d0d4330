"""The session of this process. It runs the registry, prints the summary, and passes the manifest to other
processes."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path

from . import environment, manifest, process, reporting
from .features import make_registry
from .features.fleet import fleet, install_hook, remove_hook
from .features.fleet.manifests import publish
from .features.micro_batches import micro_batches, warn_if_none
from .manifest import Activity
from .registry.apply.lifecycle import Mutex
from .registry.state import LIVE, RegistryActivity
from .version import __version__


class Session:
    """The registry of this process with its summary and manifest. The lifecycle of the process calls `begin` and
    `end`."""

    def __init__(self, mutex: Mutex, status: Callable[[], Activity]) -> None:
        """Create the registry. `status` returns everything that verl-npu has done in this process, including
        `activity`."""
        self._registry = make_registry(mutex, reporting.warn, self._changed)
        manifest.set_activity_source(status)

    def begin(self) -> None:
        """Check which features fit, and apply them when their modules are imported.

        Calling this method again has no effect, or resumes interrupted work.
        """
        if process.is_ray_worker():
            self._registry.begin()
            return
        atexit.unregister(self._write)
        atexit.register(self._write)
        self._registry.begin()
        states = self._registry.states()
        if states.get(fleet.name) in LIVE:
            install_hook()
        self._summarise()
        warn_if_none(states.get(micro_batches.name))

    def end(self) -> None:
        """Undo every patch. Calling this method again has no effect."""
        remove_hook()
        self._registry.end()

    def abandon(self) -> None:
        """Record that this process was forked while another thread was patching."""
        self._registry.abandon()

    def activity(self) -> RegistryActivity:
        """Return the state of every feature and patch."""
        return self._registry.activity()

    def _changed(self) -> None:
        self._write()
        publish()

    def _write(self) -> None:
        folder = environment.MANIFEST_DIR.read()
        if not folder:
            return
        try:
            manifest.write_manifest(Path(folder), manifest.manifest())
        except OSError as error:
            reporting.warn(
                f"VERL_NPU_MANIFEST_DIR={folder}: cannot write the manifest: {error}; give a writable folder"
            )

    def _summarise(self) -> None:
        registry = self._registry
        known = {name: revision for name, revision in registry.revisions.items() if revision.nearest_pin}
        upstreams = ", ".join(f"{name} {revision}" for name, revision in known.items())
        features = ", ".join(f"{name} {state}" for name, state in registry.states().items()) or "no features"
        mark = f"SIMULATED: {simulated}; " if (simulated := process.simulated()) else ""
        taint = f"; TAINTED: {', '.join(registry.tainted)} applied by force" if registry.tainted else ""
        reporting.report(f"{__version__}: {mark}{upstreams}; {features}{taint}")
