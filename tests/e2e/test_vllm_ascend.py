"""The real vllm-ascend on virtual NPUs. It runs where VERL_NPU_VLLM_ASCEND names the Python of an environment that has
it, as `scripts/quickstart.sh --pin ccd7d934 --rollout vllm-ascend` makes one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import serving

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_its_tokens_are_those_of_transformers_before_and_after_it_slept(
    kind: str, parallel: int, tmp_path: Path
) -> None:
    said = serving.answer(
        HERE / "vllm_ascend_tokens.py", kind, str(parallel), str(tmp_path / "model"), folder=tmp_path
    )
    assert said["awake"] == said["expected"]
    assert said["after sleep"] == said["expected"]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_in_bfloat16_its_tokens_are_those_of_transformers_but_for_ties(kind: str, tmp_path: Path) -> None:
    """A token may be another one where transformers' logits of both, in float32, are closer than its own in bfloat16
    tell apart; what comes after it is no longer compared."""
    said = serving.answer(HERE / "vllm_ascend_ties.py", kind, str(tmp_path / "model"), folder=tmp_path)
    assert said["compared"] > said["prompts"]
    assert len(said["others"]) <= said["prompts"] / 2
    assert [other for other in said["others"] if other["apart"] >= max(other["step"], other["off"])] == []


def test_its_tokens_for_pictures_are_those_of_transformers(tmp_path: Path) -> None:
    packages = os.environ.get("VERL_NPU_VLLM_ASCEND_TESTS")
    if not packages:
        pytest.skip("set VERL_NPU_VLLM_ASCEND_TESTS to a folder with torchvision")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
    said = serving.answer(HERE / "vllm_ascend_vision.py", str(tmp_path / "model"), folder=tmp_path, PYTHONPATH=path)
    assert said["tokens"] == said["expected"]
    assert said["tokens"][0] != said["tokens"][1]


@pytest.mark.parametrize("parallel", [1, 2])
def test_graphs_are_refused_before_an_engine_starts(parallel: int, tmp_path: Path) -> None:
    said = serving.answer(HERE / "vllm_ascend_graphs.py", str(parallel), str(tmp_path / "model"), folder=tmp_path)
    assert said["with graphs"] == (
        "GraphError: an engine of vLLM on virtual NPUs (VERL_NPU_VIRTUAL is set): expected one without graphs, which "
        "virtual NPUs cannot capture, found enforce_eager=False, and so cudagraph_mode PIECEWISE; set "
        "enforce_eager=True (in verl actor_rollout_ref.rollout.enforce_eager=True)"
    )
    assert said["processes"] == 0
    # The other way to have none.
    assert said["cudagraph_mode NONE"] == "served"
