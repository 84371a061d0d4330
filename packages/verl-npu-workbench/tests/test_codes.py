"""Every printed code can be explained, means one thing, and never changes its meaning."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.rules import RULES as OF_LOGS
from verl_npu_workbench.doctor.examination import SUBJECTS
from verl_npu_workbench.jobs.rules import RULES as OF_SCRIPTS
from verl_npu_workbench.watch import Kind

from tests.cli.conftest import Run, run
from verl_npu.codes import Meaning, meanings
from verl_npu.features import load

__all__ = ["run"]  # fixture

PROJECT = Path(__file__).resolve().parents[3]
GIVEN = Path(__file__).with_name("codes.txt")
SAME = {
    "liger-kernel",
    "npu-memory",
    "open-files",
    "ray-collective-hccl",
    "shared-memory",
    "task-queue",
    "torch-pair",
    "torchvision",
    "variables",
    "visible-devices",
}
"""Codes for the same fault at two moments: before a run, and in the log of the failed run."""

KNOWN = meanings()


def given() -> list[str]:
    return [line for line in GIVEN.read_text().splitlines() if line and not line.startswith("#")]


def test_what_has_a_code_can_be_explained() -> None:
    rules = (*OF_LOGS, *SUBJECTS, *OF_SCRIPTS)
    parts = [part for subject in SUBJECTS for part in subject.parts]
    codes = [*(rule.code for rule in rules), *parts, *(kind.value for kind in Kind)]
    assert [code for code in codes if code not in KNOWN] == []


@pytest.mark.parametrize(
    "code",
    [
        "placeholders",
        "cann",
        "HCCL_BUFFSIZE",
        "VERL_NPU_STRICT",
        "rollout.ranks",
        "mindspeed-mc2",
        "slow-step",
        "npu-memory",
        "FleetError",
    ],
)
def test_a_code_is_explained_by_the_command(run: Run, code: str) -> None:
    status, output = run("explain", code)
    assert status == 0
    assert output.splitlines()[0] == code
    printed = " ".join(output.split())
    for meaning in KNOWN[code]:
        assert [text for text in meaning.rows.values() if " ".join(text.split()) not in printed] == []


def test_a_code_that_is_misspelt_is_answered_with_the_nearest(run: Run) -> None:
    assert "did you mean npu-memory or" in run("explain", "npu-memry")[1]


def test_every_code_says_what_it_is_about() -> None:
    silent = [each for found in KNOWN.values() for each in found if not _says(each)]
    assert silent == []


def _says(meaning: Meaning) -> str:
    return next((meaning.rows[label] for label in ("about", "it means", "expected") if label in meaning.rows), "")


def test_a_code_means_one_thing() -> None:
    assert {code for code, found in KNOWN.items() if len(found) > 1} == SAME
    moments = [(each.code, each.said_by) for found in KNOWN.values() for each in found]
    assert [each for each, count in Counter(moments).items() if count > 1] == []


def test_no_code_is_the_name_of_a_feature_or_a_patch() -> None:
    features = load()
    names = {feature.name for feature in features} | {patch.id for feature in features for patch in feature}
    assert names & KNOWN.keys() == set()


def test_a_code_that_was_given_stays() -> None:
    """A code that nothing prints any more is explained as such; its name is not reused."""
    assert [code for code in given() if code not in KNOWN] == []


def test_a_new_code_is_written_down() -> None:
    new = sorted(KNOWN.keys() - {*given()})
    assert new == [], f"add to {GIVEN.relative_to(PROJECT)}: {' '.join(new)}"
