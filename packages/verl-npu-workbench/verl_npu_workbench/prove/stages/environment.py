"""Checks the environment with `verl-npu doctor --level import`.

The doctor imports each package in a separate process, and each of these processes imports torch again, which is slow.
verl imports most packages, so one process first imports verl. The doctor then imports only the packages that verl did
not import. If importing verl failed, the doctor imports all of them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from ...doctor import Level
from ...doctor.probes import PROBES
from ...extras import is_installed
from ...processes import captured, own_python
from ..record import NotPossible, Wrong
from .setup import Setup

_VERL = "verl.protocol"
_LOADED = f"import {_VERL}, sys, json; print(json.dumps([*sys.modules]))"


def run(setup: Setup) -> None:
    """Record each finding of `verl-npu doctor` as a check: first the findings that need no imports, then the findings
    about imports."""
    _judge(setup)
    loaded = _loaded_by_verl() if is_installed("verl") else []
    probes = [probe for probe in PROBES if probe.level is Level.IMPORT]
    for probe in probes:
        if probe.module in loaded:
            setup.record.check(probe.name, partial("{} is imported together with verl".format, probe.module))
    left = [probe.name for probe in probes if probe.module not in loaded]
    if left:
        _judge(setup, "--level", "import", "--only", ",".join(left))


def _judge(setup: Setup, *words: str) -> None:
    """Run `verl-npu doctor` with these arguments, and record each finding as a check."""
    for finding in _findings(words):
        setup.record.check(finding["name"], partial(_judged, finding), finding["why"])


def _loaded_by_verl() -> list[str]:
    """Return the modules that `import verl` imports, or an empty list if the import fails."""
    done = _python("-c", _LOADED)
    try:
        return [str(name) for name in json.loads(done.stdout.splitlines()[-1])] if done.returncode == 0 else []
    except (IndexError, ValueError):
        return []


def _findings(words: Sequence[str]) -> list[Mapping[str, str]]:
    done = _python("-m", "verl_npu", "doctor", "--json", *words)
    try:
        return [{key: str(value) for key, value in each.items()} for each in json.loads(done.stdout)]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"`verl-npu doctor` exited with status {done.returncode}: {last}") from None


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    # No timeout: the stage's process tree is ended when its time is over.
    return captured(own_python(*words))


def _judged(said: Mapping[str, str]) -> str:
    if said["verdict"] == "skipped":
        raise NotPossible(said["found"])
    if said["verdict"] == "error":
        raise Wrong(said["found"], said["needed"] or said["fix"])
    return said["found"] if said["verdict"] == "ok" else f"warning: {said['found']}"
