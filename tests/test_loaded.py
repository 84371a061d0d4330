"""The modules of ours that a process of a job loads: those that it may need, and none that only others need."""

from __future__ import annotations

import json

import pytest
from testing.interpreter import python

PROGRAM = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
names = ("verl_npu", "verl_npu_entry")
ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
files = (getattr(module, "__file__", None) for module in ours.values())
print(json.dumps([sorted(ours), sum(len(open(file).readlines()) for file in files if file)]))
"""
# Modules for maintainers and commands, and modules that a job calls later, or never.
LOADED_LATER = (
    "verl_npu.maintain",
    "verl_npu.cli.diff",
    "verl_npu.registry.judge.reach",
    "verl_npu.registry.source.sites",
    "verl_npu.registry.source.moved",
    "verl_npu.features.rollout.unmet",
    "verl_npu.features.engine_names",
    "verl_npu.features.rollout.rules",
    "verl_npu.features.weight_sync.engines",
    "verl_npu.features.weight_sync.transport",
    "verl_npu.features.weight_sync.patches.recipes",
    "verl_npu.features.megatron.workers",
)


def loaded(*names: str) -> tuple[list[str], int]:
    """Return our modules in a process with virtual NPUs that imports these names, and the lines of all of them."""
    for name in names:
        pytest.importorskip(name)
    done = python("-c", PROGRAM, *names, clean=("VERL_NPU", "VIRTUAL_ASCEND"), VIRTUAL_ASCEND="2")
    assert done.returncode == 0, done.stderr
    modules, lines = json.loads(done.stdout.splitlines()[-1])
    return modules, lines


@pytest.mark.virtual
def test_what_import_torch_loads_is_next_to_nothing() -> None:
    modules, lines = loaded("torch")
    assert len(modules) <= 13
    assert lines <= 1_690


@pytest.mark.virtual
@pytest.mark.upstream
def test_what_import_verl_loads_without_megatron_is_what_the_job_needs() -> None:
    modules, lines = loaded("torch", "verl")
    assert "verl_npu.features.attention.flash" in modules
    assert [name for name in modules if name.startswith(LOADED_LATER)] == []
    assert len(modules) <= 67
    assert lines <= 13_700
