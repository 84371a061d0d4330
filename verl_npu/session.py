"""The registry of this process, from the import of verl to the end: made, summarised on stderr, told to the others."""

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
from .registry.apply.engine import Registry
from .registry.state import LIVE
from .version import __version__


class Session:
    """The registry of this process and what is known of how it came about."""

    def __init__(self, origin: str, simulated: Callable[[], str]) -> None:
        """`origin` says what activated verl-npu; `simulated` what of this process is, if anything."""
        self._origin = origin
        self._simulated = simulated
        self._registry = make_registry(reporting.warn, self._changed)
        self.begun = False
        """Whether `begin` has come to its end."""

    def begin(self) -> None:
        """Verify the features and apply them as their modules are imported.

        Repeating it does nothing, or begins again what was interrupted.
        """
        manifest.activity_from(self.activity)
        if not process.is_ray_worker():
            atexit.unregister(self._write)
            atexit.register(self._write)
        self._registry.activate()
        if not process.is_ray_worker():
            states = self._registry.states()
            if states.get(fleet.name) in LIVE:
                install_hook()
            self._summarise()
            warn_if_none(states.get(micro_batches.name))
        self.begun = True

    def end(self) -> None:
        """Take back every patch. Repeating it does nothing."""
        self.begun = False
        remove_hook()
        self._registry.deactivate()

    def activity(self) -> Activity:
        """Return what verl-npu did in this process."""
        return {
            "version": __version__,
            "active": self._registry.active,
            "origin": self._origin,
            "simulated": bool(self._simulated()),
            "role": process.role(),
            **self._registry.activity(),
        }

    def _changed(self, registry: Registry) -> None:
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
                f"VERL_NPU_MANIFEST_DIR={folder}: cannot write the manifest there: {error}; give a writable folder"
            )

    def _summarise(self) -> None:
        registry = self._registry
        known = {name: revision for name, revision in registry.revisions.items() if revision.nearest_pin}
        upstreams = ", ".join(f"{name} {revision}" for name, revision in known.items())
        features = ", ".join(f"{name} {state}" for name, state in registry.states().items()) or "no features"
        mark = f"SIMULATED: {simulated}; " if (simulated := self._simulated()) else ""
        taint = f"; TAINTED: {', '.join(registry.tainted)} applied by force" if registry.tainted else ""
        reporting.report(f"{__version__}: {mark}{upstreams}; {features}{taint}")
