"""The environment: what `verl-npu doctor --level import` says of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from ...doctor import Level
from ...doctor.probes import PROBES
from ...processes import own_python
from ..record import NotPossible, Wrong
from .setup import Setup

_IMPORTS = ",".join(probe.name for probe in PROBES if probe.level is Level.IMPORT)


def run(setup: Setup) -> None:
    """Make a check of each thing that the doctor looks at: of what it reads first, of what it imports then."""
    for words in ((), ("--level", "import", "--only", _IMPORTS)):
        for finding in _findings(setup, words):
            setup.record.check(finding["name"], partial(_judged, finding), finding["why"])


def _findings(setup: Setup, words: Sequence[str]) -> list[Mapping[str, str]]:
    command = own_python("-m", "verl_npu", "doctor", "--json", *words)
    # It ends with this process, which is ended if its time is over.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    try:
        return [{key: str(value) for key, value in each.items()} for each in json.loads(done.stdout)]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"`verl-npu doctor` ended with status {done.returncode}: {last}") from None


def _judged(said: Mapping[str, str]) -> str:
    if said["verdict"] == "skipped":
        raise NotPossible(said["found"])
    if said["verdict"] == "error":
        raise Wrong(said["found"], said["needed"] or said["fix"])
    return said["found"] if said["verdict"] == "ok" else f"warning: {said['found']}"
