"""Upstream's own patches in a real process: detected after they ran, and lost where transformers renamed a class."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from testing.interpreter import python

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = """
import importlib, json, sys
import torch, verl, verl_npu
before = verl_npu.status()
sys.stdout.flush()
raised = ""
try:
    importlib.import_module("verl.models.transformers.npu_patch").apply_npu_patches()
except Exception as error:
    raised = f"{type(error).__name__}: {error}"
print(json.dumps({"before": before, "after": verl_npu.status(), "raised": raised}))
"""


@pytest.fixture(scope="module", autouse=True)
def upstream_patches_by_a_function() -> None:
    pytest.importorskip("torch")
    if importlib.util.find_spec("verl") is None or Version(importlib.metadata.version("verl")) < Version("0.9"):
        pytest.skip("upstream patches by a function from v0.9 on")


def run(*folders: Path, **environment: str) -> dict[str, Any]:
    done = python("-c", PROGRAM, paths=folders, **{"VIRTUAL_ASCEND": "1", **environment})
    if done.returncode:
        return {"raised": done.stderr}
    return json.loads(done.stdout.splitlines()[-1])


def states(status: dict[str, Any]) -> dict[str, str]:
    return {name: patch["state"] for name, patch in status["features"]["fused_ops"]["patches"].items()}


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """Return a folder with a copy of the installed transformers in which one class is renamed."""
    installed = Path(str(importlib.util.find_spec("transformers").origin)).parent
    shutil.copytree(installed, tmp_path / "transformers", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "transformers/models/qwen3").glob("*.py"):
        path.write_text(path.read_text().replace("Qwen3RMSNorm", "Qwen3Norm"))
    return tmp_path


def test_what_is_claimed_is_seen_after_upstreams_function_ran() -> None:
    found = run()
    assert found["raised"] == ""
    before, after = (found[when]["features"]["fused_ops"]["patches"] for when in ("before", "after"))
    left = [name for name, patch in before.items() if patch["reason"].startswith("upstream itself patches the target")]
    assert len(left) >= 15
    assert {after[name]["state"] for name in left} == {"native"}
    assert all(" assigned " in after[name]["reason"] for name in left)
    lost = {n["state"] for n in found["after"]["natives"].values()} - {"native", "absent", "off"}
    assert not lost


def test_a_renamed_class_is_named_and_takes_what_comes_after_it_along(renamed: Path) -> None:
    found = run(renamed)
    assert found["raised"] == ""
    lost = {name for name, state in states(found["after"]).items() if state == "failed"}
    assert lost == {
        "fused_ops.fuse_norm_in_qwen3_Qwen3RMSNorm",
        "fused_ops.fuse_swiglu_in_qwen3_Qwen3MLP",
        "fused_ops.fuse_rotary_in_qwen3",
    }
    assert found["after"]["features"]["fused_ops"]["state"] == "failed"
    reasons = {native["reason"] for native in found["after"]["natives"].values() if native["state"] == "failed"}
    (reason,) = reasons
    assert "no transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm" in reason


def test_under_strict_it_is_an_error(renamed: Path) -> None:
    raised = run(renamed, VERL_NPU_STRICT="1")["raised"]
    assert "DriftError" in raised
    assert "Qwen3RMSNorm" in raised
