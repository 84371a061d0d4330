"""`check` and `drift` on edited copies of an installed verl, which is never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from testing.commands import edit

from verl_npu.features import load

from .conftest import Run

pytestmark = pytest.mark.upstream
MAIN = "verl/trainer/main_ppo.py"
NPU_MODULE = "transformers.integrations.npu_flash_attention"
RAY = "verl/single_controller/ray/base.py"


def states(run: Run, tree: Path) -> tuple[int, dict, dict[str, str]]:
    status, output = run("check", "--source", str(tree), "--json")
    content = json.loads(output)
    patches = {patch["id"]: patch["state"] for feature in content["features"] for patch in feature["patches"]}
    return status, content, patches


def test_an_untouched_tree_is_exact_and_green(run: Run, tree: Path) -> None:
    status, content, _ = states(run, tree)
    assert status == 0
    assert content["revision"] == {"nearest_pin": "v0.6.1", "exact": True, "differs": []}


def test_an_upstream_that_is_not_there_is_said_to_be_not_found(run: Run, tree: Path) -> None:
    _, output = run("check", "--source", str(tree))
    heading = " ".join(output.partition("\n\n")[0].split())
    assert "mindspeed not found" in heading


def test_changed_comments_change_nothing(run: Run, tree: Path) -> None:
    edit(tree, MAIN, "# Check if Ray is not initialized", "# Is Ray there?\n    # And if not?")
    edit(tree, MAIN, '"""Initialize Ray cluster', '"""Start a Ray cluster')
    before = states(run, tree)
    assert before[0] == 0
    assert before[1]["revision"] == {"nearest_pin": "v0.6.1", "exact": False, "differs": []}


def test_a_renamed_function_is_gone(run: Run, tree: Path) -> None:
    edit(tree, MAIN, "run_ppo(", "run_the_ppo(")
    status, content, patches = states(run, tree)
    assert status == 1
    assert patches["device.set_npu_in_run_ppo_config"] == "drifted"
    assert content["revision"]["nearest_pin"] == "v0.6.1"
    assert content["revision"]["differs"] == ["verl.trainer.main_ppo:run_ppo"]


def test_an_added_parameter_is_drift_for_a_wrapper(run: Run, tree: Path) -> None:
    edit(
        tree, MAIN, "def run_ppo(config, task_runner_class=None)", "def run_ppo(config, task_runner_class=None, *, x)"
    )
    status, content, patches = states(run, tree)
    assert (status, patches["device.set_npu_in_run_ppo_config"]) == (1, "drifted")
    device = next(feature for feature in content["features"] if feature["name"] == "device")
    assert device["state"] == "drifted"


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_one_changed_operator_is_named_but_no_drift_for_a_wrapper(run: Run, tree: Path) -> None:
    edit(tree, MAIN, "if not ray.is_initialized():", "if ray.is_initialized():")
    status, content, patches = states(run, tree)
    assert (status, patches["device.set_npu_in_run_ppo_config"]) == (0, "pending")
    assert content["revision"]["exact"] is False
    assert content["revision"]["differs"] == ["verl.trainer.main_ppo:run_ppo"]


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_a_moved_module_is_gone(run: Run, tree: Path) -> None:
    (tree / RAY).rename(tree / "verl/single_controller/ray/moved.py")
    status, _, patches = states(run, tree)
    assert (status, patches["device.refuse_job_that_cannot_be_placed"]) == (1, "drifted")


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_a_number_that_is_read_in_one_method_and_used_in_another_is_not_native(run: Run, tree: Path) -> None:
    file = "verl/workers/rollout/hf_rollout.py"
    edit(tree, file, "self.module = module", "self.module = module\n        self.repeats = config.n")
    edit(
        tree,
        file,
        '"num_return_sequences": 1,\n            }\n\n',
        '"num_return_sequences": self.repeats,\n            }\n\n',
    )
    _, _, patches = states(run, tree)
    assert patches["rollout.prevent_double_repetition_in_hf_rollout"] == "pending"


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_helpers_are_needed_although_another_module_imports_them(run: Run, tree: Path) -> None:
    # The change that upstream made between 796871d7 and v0.6.1.
    edit(tree, "verl/utils/attention_utils.py", "verl.utils.npu_utils", NPU_MODULE)
    _, _, patches = states(run, tree)
    assert patches["attention.add_index_first_axis"] == "pending"
    assert patches["attention.add_rearrange"] == "pending"


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli")
def test_helpers_are_still_wanted_if_the_module_that_imports_them_was_moved(run: Run, tree: Path) -> None:
    # The change that upstream made between v0.6.1 and ccd7d934.
    old, new = (tree / f"verl/workers/{folder}/padding.py" for folder in ("roles/utils", "utils"))
    assert NPU_MODULE in old.read_text()
    new.parent.mkdir(exist_ok=True)
    (new.parent / "__init__.py").touch()
    old.rename(new)
    _, _, patches = states(run, tree)
    assert patches["attention.add_pad_input"] == "pending"
    assert patches["attention.add_unpad_input"] == "pending"
    new.unlink()
    _, _, patches = states(run, tree)
    assert patches["attention.add_unpad_input"] == "absent"


def test_diff_shows_the_new_signature_and_not_upstreams_old_code(run: Run, tree: Path) -> None:
    edit(
        tree, MAIN, "def run_ppo(config, task_runner_class=None)", "def run_ppo(config, task_runner_class=None, *, x)"
    )
    _, output = run("check", "--source", str(tree), "--diff")
    assert "-signature (config, task_runner_class=None)" in output
    assert "+signature (config, task_runner_class=None, *, x)" in output
    assert "+def run_ppo(config, task_runner_class=None, *, x)" in output


def test_check_imports_no_upstream_and_no_torch(tree: Path) -> None:
    program = (
        "import sys; from verl_npu.cli import main\n"
        f"try: main(['check', '--source', {str(tree)!r}])\n"
        "except SystemExit as end: print(end.code)\n"
        "print(sorted({'torch', 'verl', 'transformers', 'hydra', 'ray', 'torch_npu'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-2:] == ["0", "[]"]


@pytest.mark.parametrize(
    "form",
    [
        "text",
        pytest.param("json", marks=pytest.mark.nightly("verl_npu/maintain")),
        pytest.param("markdown", marks=pytest.mark.nightly("verl_npu/maintain")),
    ],
)
def test_drift_names_what_has_to_be_worked_on(maintain: Run, tree: Path, form: str) -> None:
    edit(
        tree, MAIN, "def run_ppo(config, task_runner_class=None)", "def run_ppo(config, task_runner_class=None, *, x)"
    )
    edit(tree, RAY, "placement_group", "a_placement_group")
    status, output = maintain("drift", "--source", str(tree), "--format", form)
    assert status == 1
    assert "device.set_npu_in_run_ppo_config" in output
    assert "drifted" in output
    if form == "json":
        outcomes = {patch["id"]: patch["outcome"] for patch in json.loads(output)["patches"]}
        assert outcomes["device.set_npu_in_run_ppo_config"] == "drifted"
        assert outcomes["device.refuse_job_that_cannot_be_placed"] == "gone"
        assert outcomes["fleet.compare_processes_before_training"] == "fits"


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_drift_says_what_landed(maintain: Run, tree: Path) -> None:
    edit(tree, MAIN, "if not ray.is_initialized():", "auto_set_device(config)\n    if not ray.is_initialized():")
    status, output = maintain("drift", "--source", str(tree), "--format", "json")
    outcomes = {patch["id"]: patch["outcome"] for patch in json.loads(output)["patches"]}
    assert outcomes["device.set_npu_in_run_ppo_config"] == "landed"
    assert status == 0


def test_a_folder_that_is_no_verl_is_one_line(run: Run) -> None:
    status, output = run("check", "--source", "/nonexistent")
    assert status == 2
    (line,) = output.strip().splitlines()
    assert "verl/" in line
    assert "/nonexistent" in line


def test_source_that_does_not_parse_is_one_line(run: Run, tree: Path) -> None:
    edit(tree, MAIN, "def run_ppo(", "def run_ppo((")
    status, output = run("check", "--source", str(tree))
    assert status == 2
    (line,) = output.strip().splitlines()
    assert "verl.trainer.main_ppo" in line


def test_a_feature_is_one_line_with_its_state_at_80_columns(run: Run, tree: Path) -> None:
    _, output = run("check", "--source", str(tree))
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for feature in load():
        (line,) = (line for line in lines if line.startswith(feature.name))
        assert line.split()[1] in ("pending", "native", "absent")


def test_patches_that_fit_are_shown_only_by_verbose(run: Run, tree: Path) -> None:
    patches = [patch.id for feature in load() for patch in feature]
    _, output = run("check", "--source", str(tree))
    assert not [patch for patch in patches if patch in output.split()]
    _, output = run("check", "--source", str(tree), "-v")
    assert [patch for patch in patches if patch not in output.split()] == []


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_a_patch_that_fits_and_is_bypassed_is_shown(run: Run, tree: Path) -> None:
    edit(tree, "verl/trainer/main_ppo.py", "            config=config,\n", "            config=dict(config),\n")
    status, output = run("check", "--source", str(tree))
    assert status == 0
    assert "  rollout.check_and_complete_engine_settings  pending" in output.splitlines()
    assert "may be bypassed at verl.trainer.main_ppo:TaskRunner.run" in " ".join(output.split())


@pytest.mark.nightly("verl_npu/registry", "verl_npu/cli", "verl_npu/maintain")
def test_a_patch_that_fits_is_left_out_with_a_feature_that_drifted(run: Run, drifted: Path) -> None:
    _, output = run("check", "--source", str(drifted), "-v")
    assert ", left out with its feature" in output


def test_a_drifted_patch_is_shown_with_its_target_its_reason_and_the_way_out(run: Run, drifted: Path) -> None:
    status, output = run("check", "--source", str(drifted))
    assert status == 1
    assert "  device.set_npu_in_run_ppo_config  drifted" in output.splitlines()
    for part in ("verl.trainer.main_ppo:run_ppo", "signature differs", "VERL_NPU_FORCE=device"):
        assert part in output


@pytest.mark.parametrize("arguments", [("check",), ("check", "--json"), ("check", "-v")])
@pytest.mark.usefixtures("nothing_installed")
def test_without_any_upstream_check_says_so_in_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    status, output = run(*arguments)
    assert status == 2
    (line,) = output.splitlines()
    assert "install verl in this environment, or specify a checkout or a wheel of verl with --source" in line


@pytest.mark.usefixtures("nothing_installed")
def test_a_source_is_enough_where_nothing_is_installed(run: Run, pristine: Path) -> None:
    status, output = run("check", "--source", str(pristine.parent), "--json")
    assert status == 0
    assert json.loads(output)["revision"]["nearest_pin"] == "v0.6.1"
