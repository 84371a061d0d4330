"""Installs the fault that PROVE_FAULT names in a process of a proof, before its stage or training worker begins.

Python runs this first where this folder is on PYTHONPATH; the NPU then seems to have the fault.
"""

from __future__ import annotations

import os
import sys


def _install(module: object) -> None:
    from tests.prove import faults

    faults.install(os.environ["PROVE_FAULT"])


if os.environ.get("PROVE_FAULT") == "a package that cannot be imported":
    sys.modules["tensordict"] = None  # type: ignore[assignment]
elif os.environ.get("PROVE_FAULT"):
    from verl_npu.registry.apply import hooks

    # The workers of a training are Ray processes, which run no stage.
    for module in ("verl_npu_workbench.prove.stages.setup", "verl.workers.fsdp_workers"):
        hooks.add_hook(module, _install)
