"""`status` from the manifests of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from verl_npu.cli import main
from verl_npu.manifest import write_manifest


def manifest(pid: int, role: str, state: str = "applied", **changes: object) -> dict[str, object]:
    patch = {"target": "verl.trainer.main_ppo:run_ppo", "state": state, "reason": "as at v0.6.1"}
    return {
        "host": "node0",
        "pid": pid,
        "token": f"{pid:08x}",
        "role": role,
        "version": "0.1.0",
        "active": True,
        "origin": "the entry point torch.backends",
        "simulated": True,
        "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
        "features": {"device": {"state": state, "patches": {"device.set_npu_in_run_ppo_config": patch}}},
        "tainted": [],
        "seconds": 0.05,
        **changes,
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    for pid, role in ((1, "driver"), (2, "TaskRunner"), (3, "WorkerDict")):
        write_manifest(folder, manifest(pid, role))
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["status", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_a_job_whose_processes_agree_is_shown_and_ends_with_0(job: Path) -> None:
    status, output = run(str(job))
    assert status == 0
    for part in (
        "driver node0:1",
        "TaskRunner",
        "WorkerDict",
        "v0.6.1",
        "applied",
        "50 ms",
        "torch.backends",
        "SIMULATED",
    ):
        assert part in output


@pytest.mark.parametrize("state", ["drifted", "failed", "shadowed", "disabled"])
def test_a_process_that_differs_is_named_and_ends_with_1(job: Path, state: str) -> None:
    write_manifest(job, manifest(4, "WorkerDict", state))
    status, output = run(str(job))
    assert status == 1
    assert f"{state} in WorkerDict node0:4" in output


@pytest.mark.parametrize(("state", "expected"), [("drifted", 1), ("failed", 1), ("shadowed", 1), ("native", 0)])
def test_a_bad_state_ends_with_1_even_where_all_agree(tmp_path: Path, state: str, expected: int) -> None:
    write_manifest(tmp_path / "job", manifest(1, "driver", state))
    assert run(str(tmp_path / "job"))[0] == expected


def test_force_is_a_taint_that_is_shown(tmp_path: Path) -> None:
    write_manifest(tmp_path / "job", manifest(1, "driver", tainted=["device"]))
    assert "TAINTED: device" in run(str(tmp_path / "job"))[1]


def test_targets_are_shown_by_state(job: Path) -> None:
    write_manifest(job, manifest(4, "WorkerDict", "pending"))
    _, output = run(str(job), "--targets")
    assert "device.set_npu_in_run_ppo_config  verl.trainer.main_ppo:run_ppo" in output
    assert "applied in driver:1, TaskRunner:2, WorkerDict:3" in output
    assert "pending in WorkerDict:4" in output


def test_json_holds_the_manifests_and_the_differences(job: Path) -> None:
    write_manifest(job, manifest(4, "WorkerDict", "drifted"))
    content = json.loads(run(str(job), "--json")[1])
    assert [m["pid"] for m in content["manifests"]] == [1, 2, 3, 4]
    assert len(content["differences"]) == 1


def test_a_folder_without_manifests_is_one_line(tmp_path: Path) -> None:
    status, output = run(str(tmp_path))
    assert status == 2
    (line,) = output.strip().splitlines()
    assert "VERL_NPU_MANIFEST_DIR" in line


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', "{"])
def test_a_file_that_is_no_manifest_is_one_line_that_names_it(job: Path, text: str) -> None:
    (job / "odd.json").write_text(text)
    status, output = run(str(job))
    assert status == 2
    (line,) = output.strip().splitlines()
    assert "odd.json" in line
