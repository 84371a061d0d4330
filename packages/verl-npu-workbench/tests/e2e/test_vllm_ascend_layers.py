"""The layers of the real vllm-ascend on virtual NPUs are those of transformers, and faults of it are found.

It runs where VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .serving import answer, python

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_layers.py")
RELEASES = ("0.11.0", "0.23.0")
OPERATORS = {"qwen2": 33, "qwen3": 37, "qwen3_moe": 33}
GRAPHS = "enforce_eager=false"


@pytest.fixture(scope="module")
def later() -> str:
    """The Python of an environment with the later release."""
    return python(RELEASES[-1])


def said(
    by: str, folder: Path, kind: str, dtype: str, parallel: int = 1, fault: str = "none", *more: str
) -> dict[str, Any]:
    return answer(PROGRAM, kind, dtype, str(parallel), fault, str(folder), *more, folder=folder, by=by)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("release", RELEASES)
def test_its_layers_are_as_expected(release: str, kind: str, dtype: str, parallel: int, tmp_path: Path) -> None:
    found = said(python(release), tmp_path, kind, dtype, parallel)
    assert found["first"] is None
    assert len(found["sides"]["engine"]["operators"]) == OPERATORS[kind]
    assert found["numbers"]["k3"] < (1e-9 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("release", RELEASES)
def test_its_latent_attention_is_as_expected(release: str, parallel: int, tmp_path: Path) -> None:
    found = said(python(release), tmp_path, "deepseek_v3", "bfloat16", parallel)
    assert found["first"] is None
    assert found["numbers"]["k3"] < 1e-2


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("release", RELEASES)
def test_text_of_a_model_with_pictures_is_as_expected(
    release: str, parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release == RELEASES[0]:
        if "VERL_NPU_VLLM_ASCEND_TESTS" not in os.environ:
            pytest.skip("set VERL_NPU_VLLM_ASCEND_TESTS to a folder with torchvision")
        monkeypatch.setenv("PYTHONPATH", os.environ["VERL_NPU_VLLM_ASCEND_TESTS"])
    found = said(python(release), tmp_path, "qwen2_5_vl", "bfloat16", parallel)
    assert found["first"] is None
    assert len(found["sides"]["engine"]["operators"]) == OPERATORS["qwen2"]


@pytest.mark.parametrize(
    ("kind", "parallel"), [("qwen2", 1), ("qwen3", 1), ("qwen3", 2), ("qwen3_moe", 2), ("qwen3_moe_ep", 2)]
)
@pytest.mark.parametrize("release", RELEASES)
def test_its_graphs_are_as_expected(release: str, kind: str, parallel: int, tmp_path: Path) -> None:
    found = said(python(release), tmp_path, kind, "bfloat16", parallel, "none", GRAPHS)
    assert found["first"] is None
    names = [each["operator"] for each in found["sides"]["engine with graphs"]["operators"]]
    assert names == ["layers", "lm_head", "logprobs"]


@pytest.mark.parametrize(
    ("fault", "side", "operator", "reason"),
    [
        ("Chunks", "engine", "layers.0.self_attn.attention", "chunked prefill"),
        ("Prefix", "engine", "layers.0.self_attn.attention", "prefix cache"),
        ("Moved", "engine with graphs", "layers", "graphs"),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_a_fault_that_depends_on_a_setting_is_found(
    release: str, fault: str, side: str, operator: str, reason: str, tmp_path: Path
) -> None:
    more = [GRAPHS] if reason == "graphs" else []
    found = said(python(release), tmp_path, "qwen3", "float32", 1, fault, *more)
    assert (found["first"]["side"], found["first"]["operator"]) == (side, operator)
    assert found["cause"]["reason"] == reason


def test_prefill_of_latent_attention_is_in_bfloat16(later: str, tmp_path: Path) -> None:
    """attention/mla_v1.py converts queries, keys, and values of a prefill, because an operator takes only bfloat16."""
    # What joins chunks computes in float32. So the result of a later chunk has no values of bfloat16. Without chunks
    # and a prefix cache, 0.23.0 does not choose a block size that its attention takes.
    whole = ("enable_chunked_prefill=false", "enable_prefix_caching=false", "engine_kwargs.vllm.block_size=128")
    found = said(later, tmp_path, "deepseek_v3", "float32", 1, "none", *whole)
    assert (found["first"]["side"], found["first"]["operator"]) == ("engine", "layers.0.self_attn")
    assert found["cause"]["reason"] == "dtype"
    assert found["cause"]["said"].startswith("bfloat16 instead of float32")


def test_its_log_probabilities_have_no_temperature(later: str, tmp_path: Path) -> None:
    """Its runner makes the sampler without vLLM's logprobs_mode, here processed_logprobs: sample/sampler.py."""
    found = said(later, tmp_path, "qwen3", "float32", fault="temperature")
    assert (found["first"]["side"], found["first"]["operator"]) == ("engine", "logprobs")
    assert found["cause"] == {"reason": "temperature", "said": "1 instead of 0.7"}


@pytest.mark.parametrize(
    ("fault", "operator", "reason"),
    [
        ("base", "layers.0.self_attn.rotary", "rotary base"),
        ("epsilon", "layers.0.input_layernorm", "epsilon of a norm"),
        ("weight", "layers.1.self_attn.o_proj", "another weight"),
    ],
)
def test_a_fault_is_found(later: str, fault: str, operator: str, reason: str, tmp_path: Path) -> None:
    found = said(later, tmp_path, "qwen3", "float32", fault=fault)
    assert (found["first"]["side"], found["first"]["operator"]) == ("engine", operator)
    assert found["cause"]["reason"] == reason


@pytest.mark.parametrize(
    ("kind", "dtype", "parallel", "fault", "operator", "reason"),
    [
        ("deepseek_v3", "bfloat16", 1, "Copies", "layers.0.self_attn", ""),
        ("qwen2", "float32", 2, "Kept", "layers.1.self_attn.o_proj", "another weight"),
        ("qwen3_moe_ep", "float32", 2, "SecondRow", "layers.0.mlp", ""),
        ("qwen3_moe_ep", "float32", 2, "Experts", "layers.0.mlp", "routing of experts"),
        ("qwen2", "float32", 1, "Halves", "layers.0.mlp.gate_proj", "another weight"),
    ],
)
def test_a_fault_that_users_reported_is_found(
    later: str, kind: str, dtype: str, parallel: int, fault: str, operator: str, reason: str, tmp_path: Path
) -> None:
    found = said(later, tmp_path, kind, dtype, parallel, fault)
    assert (found["first"]["side"], found["first"]["operator"]) == ("engine", operator)
    assert (found["cause"] or {}).get("reason", "") == reason


@pytest.mark.parametrize(("dtype", "strategy"), [("float32", "none"), ("bfloat16", "fsdp2")])
def test_experts_on_their_own_ranks_are_as_expected(later: str, dtype: str, strategy: str, tmp_path: Path) -> None:
    found = said(later, tmp_path, "qwen3_moe_ep", dtype, 2, "none", f'strategy="{strategy}"')
    assert found["first"] is None
    assert len(found["sides"]["engine"]["operators"]) == OPERATORS["qwen3_moe"]


def test_its_yarn_scaling_does_not_truncate_the_ends_of_the_ramp(later: str, tmp_path: Path) -> None:
    """AscendYaRNRotaryEmbedding has another default of `truncate` than vLLM and transformers."""
    found = said(later, tmp_path, "qwen3", "float32", 1, "yarn")
    assert (found["first"]["side"], found["first"]["operator"]) == ("engine", "layers.0.self_attn.rotary")
    assert found["cause"]["reason"] == "rotary scaling"
