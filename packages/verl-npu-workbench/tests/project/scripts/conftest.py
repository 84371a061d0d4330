from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import pins
from harness.jobs.base import Plan
from verl_npu_workbench.sandbox import sandbox_program

from verl_npu.errors import SandboxError
from verl_npu.manifest import write_manifest


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Skip if there is no program that makes a sandbox."""
    try:
        sandbox_program()
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(
        pin=pins.find("v0.6.1"),
        run_dir=tmp_path,
        model="m",
        train=tmp_path,
        test=tmp_path,
        generated=True,
        reward=None,
        steps=3,
        npus=2,
        seed=0,
        virtual=True,
    )


def write_states(folder: Path, role: str, pid: int, **states: str) -> None:
    """Write the manifest of a process in which each feature has one patch."""
    content: dict[str, Any] = {
        "version": "0.1.0",
        "active": True,
        "origin": "a test",
        "host": "here",
        "pid": pid,
        "token": f"{pid:08x}",
        "role": role,
        "simulated": True,
        "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
        "features": {
            name: {
                "owner": "",
                "state": state,
                "patches": {f"{name}.one": {"target": "verl:x", "state": state, "reason": "so"}},
            }
            for name, state in states.items()
        },
        "natives": {},
        "tainted": [],
        "seconds": 0.0,
    }
    write_manifest(folder, content)
