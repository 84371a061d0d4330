"""`drift --propose` names where a target went, what its lock would say, and the job that would prove it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.upstream
RENAMED = "device.set_npu_in_run_ppo_config"
MOVED = "device.request_npus_not_gpus"
MAIN = "verl/trainer/main_ppo.py"


@pytest.fixture
def newer(tree: Path) -> Path:
    """A verl in which one target has another name, and a module of two others is elsewhere."""
    file = tree / MAIN
    file.write_text(file.read_text().replace("run_ppo(", "run_the_ppo("))
    (tree / "verl/single_controller/ray/base.py").rename(tree / "verl/single_controller/ray/moved.py")
    return tree


def test_a_candidate_has_its_target_its_lock_entry_and_its_job(run: Run, newer: Path) -> None:
    status, output = run("drift", "--source", str(newer), "--propose", "--format", "json")
    assert status == 1
    found = {patch["id"]: patch["candidate"] for patch in json.loads(output)["patches"]}
    renamed = found[RENAMED]
    assert renamed["target"] == "verl.trainer.main_ppo:run_the_ppo"
    assert renamed["proven"] is False
    assert renamed["proof"] == f"scripts/smoke.sh --job grpo --verl {newer}"
    entry = renamed["lock"]["verl.trainer.main_ppo:run_the_ppo"]
    assert sorted(entry) == ["fingerprint", "kind", "outline", "signature"]
    assert entry["signature"] == "(config, task_runner_class=None)"
    assert found[MOVED]["target"] == "verl.single_controller.ray.moved:RayResourcePool.get_placement_groups"
    assert found["fleet.compare_processes_before_training"] is None


def test_the_entry_of_a_candidate_is_what_lock_would_write(run: Run, newer: Path, tmp_path: Path) -> None:
    _, output = run("drift", "--source", str(newer), "--propose", "--format", "json")
    (proposed,) = (p["candidate"] for p in json.loads(output)["patches"] if p["id"] == RENAMED)
    # The same tree with the old name back gives the entry under that name; only the name is in the fingerprint.
    file = newer / MAIN
    file.write_text(file.read_text().replace("run_the_ppo(", "run_ppo("))
    status, _ = run("lock", "--source", str(newer), "--pin", "next", "--output", str(tmp_path / "locks"))
    assert status == 0
    written = json.loads((tmp_path / "locks/verl/next/lock.json").read_text())["targets"]
    entry = written["verl.trainer.main_ppo:run_ppo"]
    candidate = proposed["lock"]["verl.trainer.main_ppo:run_the_ppo"]
    assert (candidate["kind"], candidate["signature"]) == (entry["kind"], entry["signature"])
    assert candidate["outline"].split()[1:] == entry["outline"].split()[1:]


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_candidate_is_printed_as_unproven_with_its_job(run: Run, newer: Path, form: str) -> None:
    _, output = run("drift", "--source", str(newer), "--propose", "--format", form)
    assert "verl.trainer.main_ppo:run_the_ppo" in output
    assert "unproven" in output
    assert f"scripts/smoke.sh --job grpo --verl {newer}" in output


def test_without_the_option_nothing_is_proposed(run: Run, newer: Path) -> None:
    _, output = run("drift", "--source", str(newer))
    assert "candidate" not in output
    _, output = run("drift", "--source", str(newer), "--format", "json")
    assert {patch["candidate"] for patch in json.loads(output)["patches"]} == {None}


def test_what_only_changed_has_no_candidate(run: Run, drifted: Path) -> None:
    status, output = run("drift", "--source", str(drifted), "--propose")
    assert status == 1
    assert "candidate" not in output
