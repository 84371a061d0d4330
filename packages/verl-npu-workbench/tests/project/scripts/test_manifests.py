from __future__ import annotations

from pathlib import Path

import pytest
from harness import manifests
from harness.errors import RunFailed

from verl_npu.manifest import Manifest

from .conftest import write_states as write


def job(folder: Path, **states: str) -> list[Manifest]:
    for number, role in enumerate(("driver", "TaskRunner", "worker", "worker")):
        write(folder, role, number, **states)
    return manifests.read(folder)


def test_features_of_each_process(tmp_path: Path) -> None:
    found = job(tmp_path, device="applied", attention="native")
    assert len(manifests.by_process(found)) == 4
    assert manifests.by_process(found)["worker:3"] == {"device": "applied", "attention": "native"}
    assert manifests.faults(found, 4) == []
    assert manifests.refusals(found) == {}


@pytest.mark.parametrize("state", ["drifted", "failed", "overwritten", "off"])
def test_one_process_that_differs_is_a_fault(tmp_path: Path, state: str) -> None:
    job(tmp_path, device="applied")
    write(tmp_path, "worker", 3, device=state)
    found = manifests.read(tmp_path)
    assert f"feature device: {state} in worker:3" in manifests.faults(found, 4)
    assert manifests.refusals(found) == {"device.one": "so"}


@pytest.mark.parametrize("state", ["drifted", "off", "pending"])
def test_a_feature_that_is_applied_nowhere_is_a_fault(tmp_path: Path, state: str) -> None:
    assert "feature device: applied in no process" in manifests.faults(job(tmp_path, device=state), 4)


def test_a_feature_that_the_job_does_not_use_may_wait_everywhere_but_not_drift(tmp_path: Path) -> None:
    assert manifests.faults(job(tmp_path, device="applied", fleet="pending"), 4, ("fleet",)) == []
    assert len(manifests.faults(job(tmp_path, device="applied", fleet="drifted"), 4, ("fleet",))) == 4


def test_a_process_that_only_waits_is_no_fault(tmp_path: Path) -> None:
    job(tmp_path, device="applied")
    write(tmp_path, "worker", 3, device="pending")
    assert manifests.faults(manifests.read(tmp_path), 4) == []


@pytest.mark.parametrize(("state", "found"), [("pending", 1), ("applied", 0), ("absent", 0)])
def test_a_patch_that_the_job_needs_in_every_process_may_not_wait(tmp_path: Path, state: str, found: int) -> None:
    job(tmp_path, device="applied")
    write(tmp_path, "worker", 3, device=state)
    faults = manifests.faults(manifests.read(tmp_path), 4, applied=("device.one",))
    assert [line for line in faults if line.startswith("patch")] == ["patch device.one: pending in worker:3"][:found]


def test_a_patch_that_no_manifest_has_is_missing(tmp_path: Path) -> None:
    faults = manifests.faults(job(tmp_path, device="applied"), 4, applied=("device.two",))
    assert len(faults) == 4
    assert faults[0] == "patch device.two: missing in TaskRunner:1"


def test_too_few_processes_are_a_fault(tmp_path: Path) -> None:
    assert manifests.faults(manifests.read(tmp_path), 4) == ["expected manifests of 4 processes or more; found 0"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"features": {}}'])
def test_file_that_is_no_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(RunFailed, match=r"odd\.json"):
        manifests.read(tmp_path)
