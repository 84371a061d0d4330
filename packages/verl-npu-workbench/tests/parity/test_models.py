"""Patched models on a virtual NPU against the unpatched ones on the CPU: outputs, all gradients, one step."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from verl_npu_workbench.prove.parity.compare import failures  # noqa: E402

from verl_npu.features import locks_folder  # noqa: E402
from verl_npu.registry.judge.lock import read_locks  # noqa: E402

from .processes import install, side  # noqa: E402

NEEDS_VERL = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl")
pytestmark = [pytest.mark.virtual, pytest.mark.upstream, NEEDS_VERL]

ATTENTION = {"npu_fusion_attention", "npu_rms_norm", "npu_rotary_mul", "npu_swiglu"}
FIVE = int(transformers.__version__.partition(".")[0]) >= 5
EXPERTS = {"npu_moe_token_permute", "npu_grouped_matmul", "npu_moe_token_unpermute"}


NIGHTLY = pytest.mark.nightly("verl_npu/features/attention", "verl_npu/features/fused_ops", "tests/parity")
MODELS = ("qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
# Every model once, a packed batch, and one in bf16.
DAILY = (*(f"{model}-left-64-float32" for model in MODELS), "qwen3-packed-64-float32", "qwen3_moe-right-64-bfloat16")
IMAGES = ("qwen2_5_vl-image-64-float32", "qwen3_vl-image-64-float32")
# 4.54 has no flash attention on NPUs.
LOCKED = [lock.pin for lock in read_locks(locks_folder(), "transformers") if not lock.pin.startswith("4.54.")]


@pytest.fixture(scope="module", params=[pytest.param(DAILY, id="daily"), pytest.param((), id="all", marks=NIGHTLY)])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parity")
    # Like the wheel without CANN, which the host cannot import.
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu" / "__init__.py").write_text("raise ImportError('libhccl.so: cannot open it')\n")
    side("cpu", folder / "cpu", [folder], cases=request.param)
    side("npu", folder / "npu", cases=request.param)
    return {name: torch.load(folder / name) for name in ("cpu", "npu")}


def test_both_features_are_applied(sides) -> None:
    states = sides["npu"]["states"]
    assert (states["attention"], states["fused_ops"]) == ("applied", "applied")


@pytest.mark.parametrize("model", MODELS)
def test_a_patched_model_computes_what_the_unpatched_one_does(model: str, sides) -> None:
    assert_alike({name: sides[name]["results"] for name in sides}, model)


@NIGHTLY
@pytest.mark.parametrize("version", LOCKED)
def test_patched_models_agree_with_each_locked_transformers(
    version: str, importable: Callable[[str], Path], tmp_path: Path
) -> None:
    try:
        folders = [install(version)]
    except subprocess.CalledProcessError:
        pytest.skip(f"pip cannot install transformers {version} here")
    side("cpu", tmp_path / "cpu", folders, cases=DAILY + IMAGES)
    # A pin that leaves all models to us. Its imports are empty here: it does not know transformers 5.
    shutil.copytree(importable("v0.6.1") / "verl", tmp_path / "site" / "verl")
    for name in ("__init__.py", "models/transformers/npu_patch.py") if version.startswith("5.") else ():
        (tmp_path / "site" / "verl" / name).write_text("")
    side("npu", tmp_path / "npu", [tmp_path / "site", *folders], cases=DAILY + IMAGES)
    sides = {name: torch.load(tmp_path / name) for name in ("cpu", "npu")}
    test_both_features_are_applied(sides)
    assert_alike({name: sides[name]["results"] for name in sides})


def assert_alike(results: dict[str, dict[str, Any]], model: str | None = None) -> None:
    """Check that both sides of all cases, or of a model's, are alike, and that one used the NPU's operators."""
    expected, found = results["cpu"], results["npu"]
    names = [name for name in expected if model in (None, name.partition("-")[0])]
    assert names
    wrong = {name: failures(found[name], expected[name], name.rpartition("-")[2]) for name in names}
    assert not {name: lines for name, lines in wrong.items() if lines}
    # They agree because the operators computed one side, and not because nothing was patched.
    assert all(set(found[name]["calls"]) >= ATTENTION | (EXPERTS if "moe" in name else set()) for name in names)


@NIGHTLY
@pytest.mark.skipif(FIVE, reason="v0.7.1 is for transformers 4")
def test_upstreams_own_block_of_experts_computes_it_too(importable: Callable[[str], Path], tmp_path: Path) -> None:
    # v0.7.1 replaces these classes; in training its class passes on the weights of the chosen experts only.
    case = "qwen3_vl_moe-right-64-float32"
    for name in ("cpu", "npu"):
        side(name, tmp_path / name, [importable("v0.7.1")], cases=[case])
    expected, found = (torch.load(tmp_path / name)["results"][case] for name in ("cpu", "npu"))
    assert not failures(found, expected, "float32")
    assert set(found["calls"]) >= EXPERTS


def test_the_comparison_sees_a_difference(sides) -> None:
    name = "qwen2-left-64-float32"
    expected = sides["cpu"]["results"][name]
    off = {key: value * (1 + 3e-5) for key, value in expected["values"].items()}
    assert len(failures({"values": off}, expected, "float32")) == len(off)
