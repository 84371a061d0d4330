"""`status` reads the manifests of a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from testing.commands import manifest

from verl_npu.manifest import write_manifest

from .conftest import Run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    for pid, role in ((1, "driver"), (2, "TaskRunner"), (3, "WorkerDict")):
        write_manifest(folder, manifest(pid, role))
    return folder


@pytest.fixture
def no_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes Python refuse the import.
    monkeypatch.setitem(sys.modules, "verl", None)


@pytest.fixture
def broken_verl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "verl.py").write_text("raise ImportError('libfoo.so')")
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def idle_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", ModuleType("verl"))


@pytest.fixture
def status(run: Run) -> Run:
    return lambda *arguments: run("status", *arguments)


def test_a_job_whose_processes_agree_is_shown_and_ends_with_0(status: Run, job: Path) -> None:
    code, output = status(str(job))
    assert code == 0
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


@pytest.mark.parametrize("state", ["drifted", "failed", "overwritten", "off"])
def test_a_process_that_differs_is_named_and_ends_with_1(status: Run, job: Path, state: str) -> None:
    write_manifest(job, manifest(4, "WorkerDict", state))
    code, output = status(str(job))
    assert code == 1
    assert f"{state} in WorkerDict node0:4" in " ".join(output.split())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("drifted", 1),
        ("failed", 1),
        ("overwritten", 1),
        ("native", 0),
    ],
)
def test_a_bad_state_ends_with_1_even_where_all_agree(status: Run, tmp_path: Path, state: str, expected: int) -> None:
    write_manifest(tmp_path / "job", manifest(1, "driver", state))
    assert status(str(tmp_path / "job"))[0] == expected


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("disabled", "VERL_NPU_DISABLE"),
        ("native", "upstream does it"),
        ("pending", "not imported yet: verl.trainer.main_ppo"),
        ("pending", "not imported yet: verl.trainer.main_ppo and 1 more"),
        ("absent", "the packages that this feature patches are not installed here"),
    ],
)
def test_it_says_why_a_feature_is_not_applied(status: Run, job: Path, state: str, why: str) -> None:
    content = manifest(4, "WorkerDict", state)
    patches = content["features"]["device"]["patches"]
    for patch in patches.values():
        patch["reason"] = why
    if why.endswith("more"):
        patches["device.other"] = {**next(iter(patches.values())), "target": "verl.utils.device:is_npu"}
    if state == "absent":
        patches.clear()
    write_manifest(job, content)
    output = status(str(job))[1]
    assert f" device is {state}: {why}" in " ".join(output.split())
    assert output.count("\n  device is ") == 1


def test_force_is_a_taint_that_is_shown(status: Run, tmp_path: Path) -> None:
    write_manifest(tmp_path / "job", manifest(1, "driver", tainted=["device"]))
    assert "TAINTED: device" in status(str(tmp_path / "job"))[1]


def test_targets_are_shown_by_state(status: Run, job: Path) -> None:
    write_manifest(job, manifest(4, "WorkerDict", "pending"))
    _, output = status(str(job), "--targets")
    assert "device.set_npu_in_run_ppo_config  verl.trainer.main_ppo:run_ppo" in output
    assert "applied in driver:1, TaskRunner:2, WorkerDict:3" in output
    assert "pending in WorkerDict:4" in output


def test_json_holds_the_manifests_and_the_differences(status: Run, job: Path) -> None:
    write_manifest(job, manifest(4, "WorkerDict", "drifted"))
    content = json.loads(status(str(job), "--json")[1])
    assert [m["pid"] for m in content["manifests"]] == [1, 2, 3, 4]
    assert len(content["differences"]) == 1


def test_a_folder_without_manifests_is_one_line(status: Run, tmp_path: Path) -> None:
    code, output = status(str(tmp_path))
    assert code == 2
    (line,) = output.strip().splitlines()
    assert "VERL_NPU_MANIFEST_DIR" in line


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', "{"])
def test_a_file_that_is_no_manifest_is_one_line_and_hides_no_other(status: Run, job: Path, text: str) -> None:
    _, undamaged = status(str(job))
    (job / "odd.json").write_text(text)
    code, output = status(str(job))
    assert code == 1
    line, *rest = output.splitlines()
    assert line.startswith("verl-npu: ")
    assert "odd.json: expected a manifest" in line
    assert rest == undamaged.splitlines()


def test_a_file_that_is_no_manifest_is_told_in_json(status: Run, job: Path) -> None:
    (job / "odd.json").write_text("{")
    code, output = status(str(job), "--json")
    assert code == 1
    content = json.loads(output[output.index("\n{") :])
    assert len(content["manifests"]) == 3
    assert "odd.json" in content["unread"][0]


def test_a_folder_with_damaged_manifests_alone_is_a_line_for_each(status: Run, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{")
    code, output = status(str(tmp_path))
    assert code == 2
    assert [line.partition(": expected")[0][-6:] for line in output.splitlines()] == ["a.json", "b.json"]


def test_a_job_is_readable_at_80_columns(status: Run, job: Path) -> None:
    write_manifest(job, manifest(4, "WorkerDict", "drifted"))
    _, output = status(str(job))
    assert [line for line in output.splitlines() if len(line) > 80] == []
    assert "device   applied  driver, TaskRunner, WorkerDict node0:3" in output.splitlines()
    assert "device   drifted  WorkerDict node0:4" in output.splitlines()


def test_what_a_patch_that_is_not_in_force_gave_as_its_reason_is_shown(status: Run, tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(1, "driver", "failed"))
    assert "  device.set_npu_in_run_ppo_config  failed\n    as at v0.6.1\n" in status(str(tmp_path))[1]


@pytest.mark.usefixtures("no_verl")
def test_without_verl_and_without_a_folder_one_line_says_so(status: Run) -> None:
    code, output = status()
    assert code == 2
    (line,) = output.splitlines()
    assert "found no package named verl; install verl in this environment" in line


@pytest.mark.usefixtures("broken_verl")
def test_a_verl_that_cannot_be_imported_is_one_line(status: Run) -> None:
    code, output = status()
    assert code == 2
    (line,) = output.splitlines()
    assert "found ImportError: libfoo.so" in line


@pytest.mark.usefixtures("idle_verl")
def test_a_process_without_ascend_software_is_said_to_be_off(status: Run) -> None:
    code, output = status()
    assert code == 0
    assert "verl-npu is off" in output


def test_targets_shows_what_upstream_patches_by_itself(status: Run, tmp_path: Path) -> None:
    target = "transformers.models.qwen2.modeling_qwen2:Qwen2MLP.forward"
    native = {"by": "verl.models.transformers.npu_patch", "state": "native", "reason": "assigned"}
    write_manifest(tmp_path, manifest(1, "driver"))
    write_manifest(tmp_path, manifest(2, "WorkerDict", natives={target: native}))
    code, output = status(str(tmp_path), "--targets")
    assert code == 0
    lines = output.splitlines()
    where = lines.index(f"verl.models.transformers.npu_patch  {target}")
    assert lines[where + 1] == "  native in WorkerDict:2"


def test_a_file_of_something_else_may_stay(status: Run, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"verdict": "trained"}')
    code, output = status(str(tmp_path))
    assert code == 2
    assert "for a rehearsal, the subfolder `manifests` of its output" in output
    assert "delete" not in output
