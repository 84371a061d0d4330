"""What the jobs ask of verl, and what they must leave behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import pins, training
from harness.errors import BadInput
from harness.jobs import dapo
from harness.jobs.base import Plan


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


def test_dapo_needs_a_checkout(plan: Plan) -> None:
    with pytest.raises(BadInput, match="--verl PATH"):
        dapo.arguments(plan)


def test_dapo_finds_verls_configuration_from_any_folder(plan: Plan, tmp_path: Path) -> None:
    option, module, *words = dapo.arguments(replace(plan, checkout=tmp_path))
    assert (option, module) == ("-m", "recipe.dapo.main_dapo")
    settings = dict(word.split("=", 1) for word in words)
    assert settings["hydra.searchpath"] == f"[file://{tmp_path}/verl/trainer/config]"
    assert settings["actor_rollout_ref.actor.strategy"] == "fsdp2"


def outcome(log: Path, job: str, steps: int = 2) -> Any:
    return SimpleNamespace(request=SimpleNamespace(job=job, steps=steps), log=log)


def test_a_job_that_was_not_compared_lacks_evidence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("verl-npu: 5 processes agree on what is patched\n")
    assert training.missing_evidence(outcome(log, "dapo")) == []
    log.write_text("step:1\n")
    (line,) = training.missing_evidence(outcome(log, "dapo"))
    assert "processes agree" in line


def test_each_step_of_a_job_with_a_sync_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = "weight sync {} of actor_rollout: rank 1 (rollout x): y, the engine holds them bit for bit\n"
    log.write_text("".join(said.format(number) for number in (1, 2, 2)))
    assert training.missing_evidence(outcome(log, "one_step_off")) == []
    assert len(training.missing_evidence(outcome(log, "one_step_off", steps=3))) == 1
