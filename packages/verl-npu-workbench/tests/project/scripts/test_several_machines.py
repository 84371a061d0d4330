"""Upstream's scripts for several machines: the record is correct, and the command starts their trainer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from harness.pins import SCRIPTS
from maintain import several_machines
from maintain.several_machines import Script, command, read, recorded, scan
from verl_npu_workbench.jobs.capture import Call, capture

WITHOUT = SCRIPTS / "without-submit.sh"
RECORDED = recorded()
EACH = [(revision, script) for revision, scripts in RECORDED.items() for script in scripts]

each_script = pytest.mark.parametrize(
    ("revision", "script"), EACH, ids=lambda each: each if isinstance(each, str) else Path(each.path).stem
)


def checkout(revision: str) -> Path:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip("VERL_NPU_UPSTREAMS is not set: there is no checkout whose scripts could be read")
    tree = Path(folder) / (revision if "@" in revision else f"verl-{revision}")
    if not tree.is_dir():
        pytest.skip(f"VERL_NPU_UPSTREAMS has no {tree.name}")
    return tree


# Against upstream.


@pytest.mark.parametrize("revision", RECORDED)
def test_the_record_is_what_a_checkout_says(revision: str) -> None:
    assert scan(checkout(revision)) == RECORDED[revision]


@each_script
def test_the_command_starts_the_trainer_on_as_many_machines_as_it_says(
    sandbox: None, revision: str, script: Script
) -> None:
    tree = checkout(revision)
    calls = capture(WITHOUT, tree, [script.path]) if script.submits else capture(tree / script.path, tree)
    assert [call for call in calls.calls if call.program == "ray"] == []
    trainers = [call for call in calls.calls if call.program in ("python", "python3") and "-m" in call.arguments]
    assert {machines(call) for call in trainers} == {script.nodes}


def machines(call: Call) -> int:
    """Return the number of machines that a trainer would ask for; 0 if it is no trainer."""
    found = {
        key: int(count) for key, count in re.findall(r"(trainer|rollout)\.nnodes=(\d+)", "\n".join(call.arguments))
    }
    split = "rollout" in found and "trainer" in found
    if split and any(argument.startswith("rollout.n_gpus_per_node=") for argument in call.arguments):
        npus = [int(count) for count in re.findall(r"\.n_gpus_per_node=(\d+)", "\n".join(call.arguments))]
        # On the same machines if both together fill one.
        return found["trainer"] if sum(npus) <= 16 else found["trainer"] + found["rollout"]
    return found.get("trainer", 0)


# Reading a script.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python3 -m t \\\n    trainer.n_gpus_per_node=16 \\\n    trainer.nnodes=2 $@\n", (2, 16, False, "overrides")),
        ('NNODES=${NNODES:-4}\nt trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}"\n', (4, 8, False, "NNODES")),
        ('NNODES=8\nNPUS_PER_NODE=16\nray job submit -- t trainer.nnodes="${NNODES}"\n', (8, 16, True, "")),
        (
            "A=${A:-1}\nB=${B:-2}\nNGPUS_PER_NODE=16\nt trainer.nnodes=${A} rollout.nnodes=${B}\n",
            (3, 16, False, "A B"),
        ),
        ("N=2\nNPUS_PER_NODE=16\nt trainer.nnodes=$N rollout.nnodes=$N\n", (2, 16, False, "")),
    ],
)
def test_a_script_says_what_it_takes(text: str, expected: tuple[int, int, bool, str]) -> None:
    assert read("run_npu.sh", text) == Script("run_npu.sh", *expected)


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m t trainer.n_gpus_per_node=8 trainer.nnodes=1\n",
        "# trainer.nnodes=2\npython3 -m t trainer.n_gpus_per_node=8\n",
        "ray start --head\npython3 -m t trainer.n_gpus_per_node=8 trainer.nnodes=2\n",
    ],
)
def test_what_is_no_training_on_several_machines_is_left_out(text: str) -> None:
    assert read("run_npu.sh", text) is None


def test_each_row_is_one_command() -> None:
    plain, submitting = Script("a_npu.sh", 2, 16, False, ""), Script("b_npu.sh", 4, 8, True, "")
    assert command(plain) == "verl-npu launch --nodes 2 --head HOST -- bash a_npu.sh"
    assert command(submitting, "P") == "verl-npu launch --nodes 4 --head HOST -- P/scripts/without-submit.sh b_npu.sh"


def test_what_differs_between_revisions_is_two_rows() -> None:
    one, other = Script("a_npu.sh", 2, 16, False, ""), Script("a_npu.sh", 4, 16, False, "")
    assert several_machines.rows({"v1": [one], "v2": [one], "v3": [other]}) == [(one, ["v1", "v2"]), (other, ["v3"])]


# A script whose job would be submitted.


def run(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "run.sh").write_text(script)
    return subprocess.run(
        [WITHOUT, tmp_path / "run.sh", "an argument"], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_job_is_started_instead_of_submitted_with_its_words_and_its_status(tmp_path: Path) -> None:
    ended = run(
        'ray job submit --no-wait --address x -- sh -c \'printf "[%s]" "$@"; exit 3\' - "a b" "$1"\n', tmp_path
    )
    assert (ended.returncode, ended.stdout) == (3, "[a b][an argument]")


@pytest.mark.parametrize("line", ["ray job submit --no-wait", "ray job submit --"])
def test_a_submission_without_a_command_is_an_error(tmp_path: Path, line: str) -> None:
    ended = run(f"{line}\n", tmp_path)
    assert ended.returncode == 2
    assert "expected ray job submit … -- COMMAND" in ended.stderr
