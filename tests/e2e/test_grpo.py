from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Smoke

STEPS = 6


@pytest.mark.e2e
def test_the_real_job_trains_and_all_processes_agree(pin: str, smoke: Smoke, tmp_path: Path) -> None:
    answer = smoke(steps=STEPS)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    result = json.loads((tmp_path / "smoke.json").read_text())
    assert (result["pin"], result["job"], result["simulated"]) == (pin, "grpo", True)
    assert result["steps"] == STEPS == len(result["reward"])
    assert all(0 <= reward <= 1 for reward in result["reward"])
    # The driver, the task runner and two workers.
    assert [name.partition(":")[0] for name in sorted(result["features"])] == [
        "TaskRunner",
        "WorkerDict",
        "WorkerDict",
        "driver",
    ]
    # Smoke has compared the manifests; here once more that each process has what it can have.
    found = {
        name: {process[name] for process in result["features"].values()} for name in result["features"].popitem()[1]
    }
    assert found == {
        "device": {"applied"},
        "attention": {"applied"},
        "fused_ops": {"applied"},
        "host_copies": {"native"},
        "micro_batches": {"applied"},
        "rollout": {"applied"},
        # The wheel has no recipes, and the virtual rollout no vLLM model to prepare.
        "weight_sync": {"pending"},
        # FSDP workers.
        "megatron": {"pending"},
        # Where no trainer is, nothing compares.
        "fleet": {"applied", "pending"},
    }
