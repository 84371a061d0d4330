"""A fault ends in the verdict of its own stage, and the other stages are made all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from testing.processes import gone
from verl_npu_workbench.processes import descendants

PROJECT = Path(__file__).resolve().parents[4]
WORKBENCH = Path(__file__).resolve().parents[2]
SITE = Path(__file__).with_name("site")
NIGHTLY = pytest.mark.nightly("verl_npu_workbench/prove", "packages/virtual-ascend/virtual_ascend")
pytestmark = [
    pytest.mark.virtual,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]

# The fault, the stage that must fail, the text of its cause, and the variables that go with it.
FAULTS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("a package that cannot be imported", "environment", "import-tensordict:", {}),
    ("copies that are damaged", "device", "NPU 0: copies:", {}),
    ("a copy that is not waited for", "device", "copies that are waited for", {"VIRTUAL_ASCEND_COPIES": "delayed"}),
    ("a leak", "device", "NPU 0: memory:", {}),
    ("memory that is not there", "device", "NPU 0: memory:", {}),
    ("a seed that is ignored", "device", "NPU 0: generator:", {}),
    ("too much memory refused in other words", "device", "NPU 0: out of memory:", {}),
    ("an event that is never done", "device", "NPU 0: events:", {}),
    ("a second stream that computes otherwise", "device", "NPU 0: streams:", {}),
    ("every allocation fails", "device", "memory", {"VIRTUAL_ASCEND_FAULTS": "oom:above=0.001"}),
    ("an operator wrong in its last bits", "operators", "npu_rms_norm float32", {}),
    ("rounding towards zero", "operators", "npu_swiglu bfloat16: result: the mean signed distance", {}),
    ("float32 that is computed in bfloat16", "operators", "linear float32", {}),
    ("a gradient that is a tenth too large", "operators", "npu_rotary_mul float32: gradient 0", {}),
    ("a result of another type", "operators", "npu_add_rms_norm float16: result is torch.float32", {}),
    ("a result that is no number", "operators", "npu_moe_token_unpermute", {}),
    ("rows in another order", "operators", "npu_moe_token_permute", {}),
    ("an expert that is left out", "operators", "npu_grouped_matmul", {}),
    (
        "an operator that fails",
        "operators",
        "npu_rms_norm: call 1 failed",
        {"VIRTUAL_ASCEND_FAULTS": "fail:operator=npu_rms_norm"},
    ),
    ("an operator that kills its process", "operators", "SIGKILL during the check 'npu_swiglu float32'", {}),
    ("an operator that faults", "operators", "SIGSEGV during the check 'npu_swiglu float32'", {}),
    ("an operator that hangs", "operators", "during the check 'npu_swiglu float32'", {}),
    ("attention to the future", "attention", "packed, 4 heads over 4", {}),
    ("attention across sequences", "attention", "packed, 4 heads over 4", {}),
    ("attention with another scale", "attention", "packed, 4 heads over 4", {}),
    ("features that are not applied", "models", "attention is disabled", {"VERL_NPU_DISABLE": "attention"}),
    ("a mean that is no mean", "collectives", "all_reduce AVG", {}),
    ("parts that are exchanged", "collectives", "all_to_all", {}),
    ("a broadcast from another rank", "collectives", "broadcast from 1", {}),
    ("a rank that dies", "collectives", "SIGKILL", {"VIRTUAL_ASCEND_FAULTS": "die:collective=3:rank=1"}),
    ("a link that is much too slow", "collectives", "had not ended", {"VIRTUAL_ASCEND_FAULTS": "slow:seconds=20"}),
    ("a stale weight", "weight_sync", "bit for bit: different bits", {}),
    ("a sync that dawdles", "weight_sync", "its share of a raw broadcast", {}),
    ("a receiver that dies", "weight_sync", "SIGKILL", {"VIRTUAL_ASCEND_FAULTS": "die:collective=2:rank=1"}),
    ("gradients that are no numbers", "training", "grpo: the gradient norms are [nan", {}),
    ("memory that no plan knew of", "training", "of tensors at most, planned 0.03", {}),
    ("a worker that dies", "training", "0 of 3 steps", {"VIRTUAL_ASCEND_FAULTS": "die:collective=3:rank=1"}),
)
# One fault of each stage; its stage is made beside another one, and then anew without the fault.
REPEATED = (
    *("a package that cannot be imported", "a leak", "an operator that kills its process", "attention to the future"),
    *("features that are not applied", "a rank that dies", "a stale weight", "a worker that dies"),
)


def test_the_record_lists_these_faults() -> None:
    runs = json.loads((PROJECT / "docs/records/prove-faults.json").read_text())["runs"]
    said = [(run["job"], run["results"]["stage that fails"], run["results"]["cause"]) for run in runs]
    assert said == [(fault, stage, cause.rstrip(":")) for fault, stage, cause, _variables in FAULTS]


def command(output: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "verl_npu", "prove", "--output", str(output), *words]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ASCEND", "VERL_NPU"))}
    path = os.pathsep.join([str(SITE), str(WORKBENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "VIRTUAL_ASCEND": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **changes}


def proved(output: Path, *words: str, **changes: str) -> dict[str, dict[str, Any]]:
    """Make a proof, and return the result of each stage."""
    done = subprocess.run(
        command(output, "--json", *words), env=environment(**changes), capture_output=True, text=True, timeout=3600
    )
    assert done.returncode in (0, 1), done.stderr
    return {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}


@NIGHTLY
@pytest.mark.parametrize(
    ("fault", "stage", "cause", "variables"),
    [pytest.param(*each, id=each[0]) for each in FAULTS],
)
def test_a_fault_ends_in_its_stages_verdict(
    fault: str, stage: str, cause: str, variables: dict[str, str], tmp_path: Path
) -> None:
    other = "attention" if stage in ("device", "operators") else "device"
    stages = ("--stage", stage, *(("--stage", other) if fault in REPEATED else ()))
    minutes = "5" if fault == "an operator that hangs" else "20"
    output = tmp_path / "proof"
    found = proved(output, "--npus", "2", "--minutes", minutes, *stages, PROVE_FAULT=fault, **variables)
    assert found[stage]["verdict"] == "failed", found[stage]
    assert cause in found[stage]["cause"]
    assert found[stage]["meaning"]
    if fault in REPEATED:
        # The other stage is made to its end, whatever its result.
        assert found[other]["checks"]
        again = proved(output, "--npus", "2", "--resume", "--stage", stage, "--minutes", "20")
        assert (again[stage]["verdict"], again[stage]["cause"]) == ("passed", "")
        assert again[other] == found[other]


def test_without_a_fault_the_device_passes_and_a_proof_is_kept(tmp_path: Path) -> None:
    found = proved(tmp_path / "proof", "--npus", "1", "--stage", "device")
    assert {check["verdict"] for check in found["device"]["checks"]} == {"passed"}
    again = subprocess.run(
        command(tmp_path / "proof", "--stage", "device"), env=environment(), capture_output=True, text=True
    )
    assert (again.returncode, again.stdout) == (2, "")
    assert "expected a folder without a proof" in again.stderr


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=NIGHTLY), pytest.param(signal.SIGTERM, marks=NIGHTLY)],
)
def test_what_was_finished_when_a_signal_came_is_kept_and_gone_on_with(number: int, tmp_path: Path) -> None:
    output = tmp_path / "proof"
    stages = ("--npus", "1", "--stage", "device", "--stage", "attention")
    with subprocess.Popen(
        command(output, *stages), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        record = output / "stages" / "attention.jsonl"
        until = time.monotonic() + 120
        while not (record.exists() and record.read_bytes().count(b'{"check"') > 1) and time.monotonic() < until:
            time.sleep(0.02)
        below = descendants(process.pid)
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert [pid for pid in below if not gone(pid, 10)] == []
    finished = record.read_bytes().rpartition(b"\n")[0]
    found = proved(output, "--resume", "--stage", "attention")
    assert {name: stage["verdict"] for name, stage in found.items()} == {"device": "passed", "attention": "passed"}
    # The recorded checks were not made again.
    assert record.read_bytes().startswith(finished)


@NIGHTLY
def test_a_full_disk_is_one_error_and_what_was_finished_is_kept(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    stages = "--npus 1 --stage device --stage operators"
    inside = f"""
        mount -t tmpfs -o size=96k none {disk} || exit 77
        {sys.executable} -m verl_npu prove --output {disk}/proof {stages}; echo "status $?"
        cp -r {disk}/proof {tmp_path}/kept
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside], env=environment(), capture_output=True, text=True, timeout=600
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("there can be no small disk here")
    assert "status 2" in done.stdout or "status 1" in done.stdout, done.stdout + done.stderr
    assert "No space left" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    device = json.loads((tmp_path / "kept" / "stages" / "device.json").read_text())
    assert device["verdict"] == "passed"
    found = proved(tmp_path / "kept", "--resume", "--stage", "operators")
    assert (found["device"]["verdict"], found["operators"]["verdict"]) == ("passed", "passed")
