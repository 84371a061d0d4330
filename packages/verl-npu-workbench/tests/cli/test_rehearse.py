"""`verl-npu rehearse` and `verl-npu lint`: plans, and one clear line for a file that is no launch script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.settings import Settings

from tests.jobs.conftest import COMMAND, CONFIGURATION, TRAINER, Write, sandboxed, tree, write

from .conftest import Run

pytest.importorskip("hydra")
__all__ = ["sandboxed", "tree", "write"]  # fixtures

RL = """
algorithm:
  adv_estimator: grpo
custom_reward_function: {path: null, name: compute_score}
actor_rollout_ref:
  model: {path: ~/models/Qwen2.5-7B}
  actor: {strategy: fsdp, ppo_mini_batch_size: 256, ppo_micro_batch_size_per_gpu: 8}
  rollout: {name: vllm, n: 5, tensor_model_parallel_size: 4}
"""


@pytest.mark.parametrize(
    ("command", "line", "said"),
    [
        ("lint", "python3 convert.py", "expected a script that starts a trainer"),
        ("rehearse", "python3 -m verl.trainer.none a=1 b=2 c=3", "the trainer verl.trainer.none"),
    ],
)
def test_what_is_no_launch_script_is_one_line(
    sandboxed: None,
    run: Run,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    line: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = run(command, "--json", str(write(line)))
    assert (status, len(output.splitlines())) == (2, 1)
    assert output.startswith("verl-npu: ")
    assert said in output


def test_a_folder_without_scripts_is_one_line(run: Run, write: Write) -> None:
    status, output = run("rehearse", str(write(name="empty/README").parent))
    assert (status, len(output.splitlines())) == (2, 1)
    assert "the folder has no launch script (*.sh)" in output


def test_neither_script_nor_command_is_one_line(run: Run) -> None:
    status, output = run("rehearse")
    assert (status, len(output.splitlines())) == (2, 1)
    assert "neither a launch script nor a trainer's command after -- was given" in output


def test_a_machine_without_a_sandbox_is_told_the_other_way(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(COMMAND)
    monkeypatch.setattr("verl_npu_workbench.sandbox.shutil.which", lambda name: None)
    status, output = run("rehearse", str(script))
    assert (status, len(output.splitlines())) == (2, 1)
    assert "bubblewrap" in output
    assert "--unconfined" in output


def test_a_tree_at_another_revision_than_the_pin_is_one_line(
    run: Run, rl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_npu.cli.upstreams.nearest_pin", lambda tree: "v0.6.1")
    status, output = run("rehearse", "--pin", "v0.7.1", "--verl", str(rl), "--plan-only", "--", *GOOD.split())
    assert (status, len(output.splitlines())) == (2, 1)
    assert "expected verl at the pin v0.7.1" in output
    assert "whose nearest pin is v0.6.1" in output


@pytest.fixture
def rl(tree: Path) -> Path:
    """Return the tree with a trainer for reinforcement learning."""
    (tree / "verl" / "trainer" / "config" / "rl.yaml").write_text(CONFIGURATION + RL)
    (tree / "verl" / "trainer" / "main_rl.py").write_text(TRAINER.replace('"main"', '"rl"'))
    return tree


_CAPTURES_NIGHTLY = pytest.mark.nightly("verl_npu_workbench/jobs", "verl_npu_workbench/rehearse")
GOOD = "python3 -m verl.trainer.main_rl data.train_batch_size=1024 trainer.nnodes=2 trainer.device=npu"


@_CAPTURES_NIGHTLY
@pytest.mark.parametrize(
    "first",
    [
        pytest.param([sys.executable], id="by its path"),
        pytest.param(["uv", "run", "python3"], id="by uv", marks=_CAPTURES_NIGHTLY),
        pytest.param(["A=1", "python3"], id="with a variable", marks=_CAPTURES_NIGHTLY),
    ],
)
def test_a_trainers_command_may_name_its_program_by_path(run: Run, rl: Path, first: list[str], tmp_path: Path) -> None:
    words = ["--plan-only", "--output", str(tmp_path / "out"), "--", *first, *GOOD.split()[1:]]
    status, output = run("rehearse", "--verl", str(rl), *words, columns=200)
    assert (status, output.splitlines()[0][:24]) == (0, "verl.trainer.main_rl in ")


def test_a_script_whose_name_begins_like_a_program_is_a_script(run: Run, write: Write, sandboxed: None) -> None:
    script = write("python3 $1", name="examples/python_train.sh")
    status, output = run("rehearse", str(script), "convert.py", columns=400)
    assert (status, "a script that runs only python3 convert.py" in output) == (2, True)


def planned(run: Run, *arguments: str) -> dict[str, object]:
    status, output = run("rehearse", "--plan-only", "--json", *arguments)
    assert status == 0, output
    return json.loads(output)


def after(plan: dict[str, object]) -> Settings:
    return Settings({change["key"]: change["after"] for change in plan["changes"]})  # type: ignore[index,attr-defined]


def test_a_plan_says_what_is_scaled(sandboxed: None, run: Run, rl: Path, write: Write, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    plan = planned(run, "--output", str(tmp_path / "out"), str(write("export HCCL_X=1", GOOD)))
    assert (plan["trainer"], plan["architecture"], plan["npus"]) == ("verl.trainer.main_rl", "qwen2", 2)
    assert plan["exports"] == {"HCCL_X": "1"}
    assert after(plan).get("data.train_batch_size") == 8
    assert after(plan).get("trainer.nnodes") == 1
    assert "++data.train_batch_size=8" in plan["command"]


@pytest.mark.parametrize("command", ["plan", "rehearse"])
def test_a_trees_code_is_not_run_without_a_sandbox_by_itself(
    run: Run, rl: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Bubblewrap is missing because its name is not found."""
    monkeypatch.setattr("verl_npu_workbench.sandbox.shutil.which", lambda name: None)
    (rl / "hydra.py").write_text(f"open({str(rl / 'reached')!r}, 'w')")
    status, output = run(command, "--verl", str(rl), "--", *GOOD.split())
    assert (status, len(output.splitlines())) == (2, 1)
    assert "--unconfined" in output
    assert not (rl / "reached").exists()


def test_a_script_is_judged_by_its_text_where_there_is_no_sandbox(
    run: Run, rl: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_npu_workbench.sandbox.shutil.which", lambda name: None)
    script = write(f"touch {rl}/reached", "HCCL_BUFFSIZE=200", GOOD)
    status, output = run("lint", "--json", str(script))
    judged = json.loads(output)
    assert (status, [each["subject"] for each in judged["findings"]]) == (2, ["HCCL_BUFFSIZE"])
    assert "no sandbox is possible here (bwrap is not on PATH)" in judged["not_judged"]
    assert not (rl / "reached").exists()
    status, output = run("lint", str(script))
    assert (status, output.startswith("not judged: "), "--unconfined" in output) == (2, True, True)
    assert "0 refused, 1 warning; " in output
    status, output = run("lint", str(write(GOOD)))
    assert (status, output.startswith("not judged: "), "in order" in output) == (2, True, False)
    assert run("lint", str(write("if true; then")))[0] == 2


def test_a_script_is_judged_whole_without_a_sandbox_if_that_is_asked(
    run: Run, rl: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_npu_workbench.sandbox.shutil.which", lambda name: None)
    status, output = run("lint", "--unconfined", str(write("export HCCL_X=$(hostname)", GOOD)))
    assert (status, output.splitlines()[0]) == (0, UNCONFINED)
    assert "verl.trainer.main_rl in" in output


UNCONFINED = "verl-npu: unconfined: the code that runs can read your home folder and use your network"


@_CAPTURES_NIGHTLY
def test_a_plan_of_a_command_needs_no_sandbox_if_that_is_asked(
    run: Run, rl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr("verl_npu_workbench.sandbox.shutil.which", lambda name: None)
    monkeypatch.setattr("verl_npu.cli.upstreams.nearest_pin", lambda tree: "v0.6.1")
    asked = ["--verl", str(rl), "--pin", "v0.6.1", "--npus", "4", "--without", "batches"]
    words = ["--unconfined", "--output", str(tmp_path / "out"), *asked, "--", *GOOD.split()]
    status, output = run("rehearse", "--plan-only", "--json", *words)
    said, _, plan_text = output.partition("\n")
    assert (status, said) == (0, UNCONFINED)
    plan = json.loads(plan_text)
    assert plan["npus"] == 4
    assert "data.train_batch_size" not in after(plan)


def test_an_unknown_architecture_is_one_line(run: Run, rl: Path, tmp_path: Path) -> None:
    words = [*GOOD.split(), "actor_rollout_ref.model.path=mine"]
    status, output = run("rehearse", "--output", str(tmp_path), "--verl", str(rl), "--plan-only", "--", *words)
    assert (status, len(output.splitlines())) == (2, 1)
    assert "--architecture NAME" in output
    status, output = run(
        "rehearse", "--output", str(tmp_path), "--verl", str(rl), "--architecture", "gpt9", "--", *words
    )
    assert (status, len(output.splitlines())) == (2, 1)
    assert "expected one of qwen2_5_vl" in output


def checked(run: Run, script: Path) -> tuple[int, dict[str, object]]:
    status, output = run("lint", str(script), "--json")
    return status, json.loads(output)


def refused(content: dict[str, object]) -> list[str]:
    return [finding["rule"] for finding in content["findings"] if finding["refused"]]  # type: ignore[index,attr-defined]


def test_a_script_in_order_is_status_0(sandboxed: None, run: Run, rl: Path, write: Write) -> None:
    status, content = checked(run, write("source /usr/local/Ascend/set_env.sh", GOOD))
    assert status == 0
    assert refused(content) == []
    assert content["missing"] == ["/usr/local/Ascend/set_env.sh"]
    assert content["trainer"] == "verl.trainer.main_rl"


def test_advice_is_no_finding_and_can_be_left_out(sandboxed: None, run: Run, rl: Path, write: Write) -> None:
    script = write("export VERL_NPU_DISABLE=fused_ops", GOOD)
    status, content = checked(run, script)
    *_warnings, found = content["findings"]  # type: ignore[misc]
    assert (status, found["rule"], found["severity"], found["refused"]) == (0, "lever.fused-ops", "advice", False)
    assert "verl-project/verl#4406" in found["source"]
    status, output = run("lint", str(script), columns=400)
    before, after = output.split("Advice on the job's speed, with figures from other jobs:\n")
    advised, *said, end = after.splitlines()
    assert (status, advised) == (0, "advice  lever.fused-ops: VERL_NPU_DISABLE=fused_ops")
    assert "Try: remove VERL_NPU_DISABLE. Source: ByteDance-Seed/VeOmni#308" in " ".join(" ".join(said).split())
    assert run("lint", "--no-advice", str(script), columns=400) == (0, f"{before}{end}\n")


@pytest.mark.parametrize(("start", "expected"), [("OmegaConf.resolve(config)", (1, ["hydra"])), ("pass", (0, []))])
def test_a_reference_to_a_setting_that_was_left_out_is_refused_where_the_trainer_follows_it(
    sandboxed: None, run: Run, rl: Path, write: Write, start: str, expected: tuple[int, list[str]]
) -> None:
    (rl / "verl" / "trainer" / "main_rl.py").write_text(TRAINER.replace('"main"', '"rl"').replace("pass", start))
    status, content = checked(run, write(f"{GOOD} ~data.train_batch_size".replace("data.train_batch_size=1024 ", "")))
    assert (status, refused(content)) == expected


def test_what_a_job_in_this_environment_would_miss_is_said(
    sandboxed: None, run: Run, rl: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(GOOD)
    assert "ray not installed" not in " ".join(run("lint", str(script))[1].split())
    monkeypatch.setitem(sys.modules, "ray", None)
    status, content = checked(run, script)
    assert (status, content["lacking"]) == (0, ["ray"])
    assert "ray not installed: a job in" in " ".join(run("lint", str(script))[1].split())


def test_findings_are_printed_with_their_fix(sandboxed: None, run: Run, rl: Path, write: Write) -> None:
    status, output = run("lint", str(write(GOOD.replace("=npu", "=cuda"))))
    assert status == 1
    assert "refused" in output
    assert "Fix: remove trainer.device, or set it to npu" in " ".join(output.split())


def test_arguments_of_a_script_follow_dashes(sandboxed: None, run: Run, rl: Path, write: Write) -> None:
    script = write(f"{GOOD.replace('=1024', '=$1')}")
    status, output = run("lint", str(script), "--json", "--", "2048")
    assert status == 0
    assert "data.train_batch_size=2048" in json.loads(output)["overrides"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [("", "of the script"), ("--source", "that --source names"), ("--verl", "that --source names")],
)
def test_check_says_by_which_verl_it_judged_and_why(
    sandboxed: None, run: Run, rl: Path, write: Write, option: str, reason: str
) -> None:
    asked = [option, str(rl)] if option else []
    status, output = run("lint", *asked, str(write(GOOD)))
    said = " ".join(output.split())
    assert status == 0
    assert f"checked against: {rl}/verl, in the source tree {reason}; its nearest pin is " in said


def test_check_says_that_it_judged_by_the_installed_verl(
    sandboxed: None, run: Run, rl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(rl))
    # An earlier test may have imported another verl into this process.
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    alone = tmp_path / "alone" / "run.sh"
    alone.parent.mkdir()
    alone.write_text(GOOD)
    status, output = run("lint", "--json", str(alone))
    verl = json.loads(output)["verl"]
    assert (status, verl["path"], verl["reason"]) == (
        0,
        str(rl / "verl"),
        f"the installed verl, because {alone.parent} has none",
    )


def test_a_wheel_beside_a_script_is_one_line(run: Run, write: Write, tmp_path: Path) -> None:
    wheel = tmp_path / "verl.whl"
    wheel.touch()
    status, output = run("lint", "--source", str(wheel), str(write(GOOD)))
    assert (status, len(output.splitlines())) == (2, 1)
    assert "the source tree" in output


def test_what_needs_no_settings_is_judged_beside_what_hydra_refuses(
    sandboxed: None, run: Run, rl: Path, write: Write
) -> None:
    status, content = checked(run, write("export HCCL_BUFFSIZE=abc", f"{GOOD} trainer.unknown=1"))
    assert (status, [each["rule"] for each in content["findings"]]) == (1, ["hydra", "variables"])  # type: ignore[attr-defined]


SUBMITTED = [
    "printf 'env_vars:\\n  HCCL_BUFFSIZE: abc\\n' > runtime.yaml",
    "export HCCL_EXEC_TIMEOUT=-1",
    f"ray job submit --runtime-env=runtime.yaml -- {GOOD} data.x=1 data.x=2",
]


def test_a_script_is_judged_without_hydra_and_without_pyyaml_as_far_as_that_goes(
    sandboxed: None, run: Run, rl: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("hydra", "omegaconf", "yaml"):
        monkeypatch.setitem(sys.modules, module, None)
    status, content = checked(run, write(*SUBMITTED))
    assert (status, [each["rule"] for each in content["findings"]]) == (2, ["shadowed"])  # type: ignore[attr-defined]
    assert "the settings, and the rules that depend on them, and the variables of the" in str(content["not_judged"])
    status, output = run("lint", str(write(*SUBMITTED)))
    assert "Install hydra-core and PyYAML: pip install 'verl-npu-workbench[scripts]'." in " ".join(output.split())


@pytest.mark.parametrize("command", ["plan", "rehearse"])
@pytest.mark.parametrize("option", ["--source", "--verl"])
def test_the_source_tree_is_named_alike_in_all_commands(run: Run, command: str, option: str, tmp_path: Path) -> None:
    words = ["python3", "-m", "verl.trainer.none", "a=1", "b=2", "c=3"]
    status, output = run(command, "--unconfined", option, str(tmp_path), "--", *words)
    assert status == 2
    assert f"the trainer is neither in {tmp_path} nor installed" in output
