"""The choice between flash-linear-attention's kernels and transformers' code, on a virtual NPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testing.interpreter import import_path
from virtual_ascend.testing.fixtures import Run

from verl_npu.features import load
from verl_npu.features.linear_attention import linear_attention

pytest.importorskip("torch")
pytestmark = [pytest.mark.virtual, pytest.mark.upstream]
NIGHTLY = pytest.mark.nightly("verl_npu/features/linear_attention.py")

PROGRAM = """
import json, sys
import torch, verl, verl_npu
from transformers.models.qwen3_next import configuration_qwen3_next, modeling_qwen3_next as modeling

SETUP
sizes = {"linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 16}
config = configuration_qwen3_next.Qwen3NextConfig(hidden_size=32, linear_value_head_dim=16, **sizes)
state = torch.random.get_rng_state()
with torch.device("meta"):
    first = modeling.Qwen3NextGatedDeltaNet(config, 0)
layer = modeling.Qwen3NextGatedDeltaNet(config, 1)
state = verl_npu.status()["features"]["linear_attention"]["patches"]["linear_attention.use_kernels_in_qwen3_next"]
used = [each.chunk_gated_delta_rule.__module__ for each in (first, layer)]
print("SAID " + json.dumps([state["state"], used, modeling.is_fast_path_available]))
"""
RULE = """
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as torchs

def chunk_gated_delta_rule(*given, cu_seqlens=None, **named):
    found, state = torchs(*given, **named)
    return CHANGED, state
"""
TORCHS = "transformers.models.qwen3_next.modeling_qwen3_next"
FLA = "fla.ops.gated_delta_rule"
COST = "7.9 s instead of 5.0 s in ms-swift#9195"


@pytest.fixture
def fla(tmp_path: Path) -> Path:
    """Return a folder with a stand-in for flash-linear-attention 0.6.0, which computes with torch's code."""
    for module, text in (
        ("fla", ""),
        ("fla/utils", "device_platform = 'npu'"),
        ("fla/ops", ""),
        ("fla/ops/gated_delta_rule", RULE.replace("CHANGED", "found")),
        ("fla/ops/gated_delta_rule/backends", ""),
        ("fla/ops/gated_delta_rule/backends/triton_ascend", ""),
    ):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(text)
    version(tmp_path, "0.6.0")
    return tmp_path


def version(folder: Path, text: str) -> None:
    metadata = folder / "fla_core-0.dist-info/METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: fla-core\nVersion: {text}\n")


def rule(fla: Path, changed: str) -> None:
    (fla / "fla/ops/gated_delta_rule/__init__.py").write_text(RULE.replace("CHANGED", changed))


def said(python: Run, *folders: Path, setup: str = "") -> tuple[list[Any], str]:
    done = python(PROGRAM.replace("SETUP", setup), PYTHONPATH=import_path(*folders))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("verl-npu: linear attention")]
    assert len(lines) == 1, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("SAID "))[5:]), lines[0]


def test_kernels_that_pass_the_trial_are_used(python: Run, fla: Path) -> None:
    found, line = said(python, fla)
    assert found == ["applied", [FLA, FLA], True]
    assert line == "verl-npu: linear attention uses the NPU kernels of flash-linear-attention 0.6.0"


def test_without_the_package_a_warning_tells_the_cost(python: Run) -> None:
    found, line = said(python, setup="sys.modules['fla'] = None")
    assert found == ["applied", [TORCHS, TORCHS], False]
    assert "because flash-linear-attention is not installed; install flash-linear-attention 0.5.2 or later" in line
    assert COST in line


@NIGHTLY
def test_who_replaced_the_function_is_named(python: Run, fla: Path) -> None:
    setup = f"import {FLA}; {FLA}.chunk_gated_delta_rule.__module__ = 'mindspeed.core.ssm.chunk_gated_delta_rule'"
    found, line = said(python, fla, setup=setup)
    assert found[1:] == [[TORCHS, TORCHS], False]
    assert f"{FLA}.chunk_gated_delta_rule was replaced by the function of mindspeed.core.ssm" in line


@NIGHTLY
@pytest.mark.parametrize(
    "changed",
    [
        "found * 1.1",
        "found * float('nan')",
        "found.detach() + found / 2 - found.detach() / 2",
        "found + 0 * (found - found.detach()).sqrt()",
    ],
)
def test_kernels_with_other_numbers_or_gradients_are_not_used(python: Run, fla: Path, changed: str) -> None:
    rule(fla, changed)
    found, line = said(python, fla)
    assert found[1:] == [[TORCHS, TORCHS], False]
    assert "flash-linear-attention's results differ from torch's by" in line


@NIGHTLY
def test_kernels_that_do_not_compile_are_not_used(python: Run, fla: Path) -> None:
    rule(fla, "[][0]")
    found, line = said(python, fla)
    assert found[1:] == [[TORCHS, TORCHS], False]
    assert "a trial of flash-linear-attention's kernels failed on this NPU: IndexError" in line


@NIGHTLY
@pytest.mark.parametrize(
    ("text", "reason"),
    [("0.5.1", "flash-linear-attention 0.5.1 has no NPU kernels for it; install"), ("0.6.0", "cannot be imported")],
)
def test_a_release_without_the_kernels_is_not_used(python: Run, fla: Path, text: str, reason: str) -> None:
    version(fla, text)
    (fla / "fla/ops/gated_delta_rule/backends/triton_ascend/__init__.py").unlink()
    (fla / "fla/ops/gated_delta_rule/backends/triton_ascend").rmdir()
    found, line = said(python, fla)
    assert found[1:] == [[TORCHS, TORCHS], False]
    assert reason in line


@NIGHTLY
def test_triton_for_another_device_is_not_used(python: Run, fla: Path) -> None:
    (fla / "fla/utils/__init__.py").write_text("device_platform = 'cpu'")
    assert "because Triton finds no NPU, but cpu; install" in said(python, fla)[1]


def test_each_model_has_one_patch() -> None:
    (feature,) = (each for each in load() if each.name == linear_attention.name)
    assert {patch.target.module.split(".")[2] for patch in feature} == {"qwen3_next", "qwen3_5", "qwen3_5_moe"}
