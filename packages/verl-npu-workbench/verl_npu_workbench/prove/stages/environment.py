"""The environment: what `verl-npu doctor --level import` says of it.

The doctor imports each package in a process of its own, torch each time anew. A job's process imports verl, and verl
imports most of them: so that is done first, once. Only what it did not import, or all if it failed, is left to the
doctor.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from ...doctor import Level
from ...doctor.probes import PROBES
from ...extras import is_installed
from ...processes import own_python
from ..record import NotPossible, Wrong
from .setup import Setup

_VERL = "verl.protocol"
_LOADED = f"import {_VERL}, sys, json; print(json.dumps([*sys.modules]))"


def run(setup: Setup) -> None:
    """Make a check of each thing that the doctor looks at: of what it reads first, of what is imported then."""
    _judge(setup)
    loaded = _loaded_by_verl() if is_installed("verl") else []
    probes = [probe for probe in PROBES if probe.level is Level.IMPORT]
    for probe in probes:
        if probe.module in loaded:
            setup.record.check(probe.name, partial("{} can be imported, in the process of a job".format, probe.module))
    left = [probe.name for probe in probes if probe.module not in loaded]
    if left:
        _judge(setup, "--level", "import", "--only", ",".join(left))


def _judge(setup: Setup, *words: str) -> None:
    """Have the doctor look, and make a check of each of its findings."""
    for finding in _findings(words):
        setup.record.check(finding["name"], partial(_judged, finding), finding["why"])


def _loaded_by_verl() -> list[str]:
    """The modules of a process that has imported verl; none if it cannot."""
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
        raise RuntimeError(f"`verl-npu doctor` ended with status {done.returncode}: {last}") from None


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    # It ends with this process, which is ended if its time is over.
    return subprocess.run(
        own_python(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def _judged(said: Mapping[str, str]) -> str:
    if said["verdict"] == "skipped":
        raise NotPossible(said["found"])
    if said["verdict"] == "error":
        raise Wrong(said["found"], said["needed"] or said["fix"])
    return said["found"] if said["verdict"] == "ok" else f"warning: {said['found']}"
