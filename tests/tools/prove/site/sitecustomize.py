"""What a process of a proof runs first where this folder is on PYTHONPATH: the fault that PROVE_FAULT names is put in
before the stage begins, as if the NPU had it."""

from __future__ import annotations

import os


def _install(module: object) -> None:
    from tests.tools.prove import faults

    faults.install(os.environ["PROVE_FAULT"])


if os.environ.get("PROVE_FAULT"):
    from verl_npu.registry.apply import hooks

    hooks.add_hook("verl_npu.tools.prove.stages.setup", _install)
