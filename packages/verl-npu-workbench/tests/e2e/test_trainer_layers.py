"""The layers of verl's FSDP and Megatron engines on two virtual NPUs are those of transformers, and faults are found.

It runs where VERL_NPU_VLLM_ASCEND is set, because that environment has a verl with these engines. Megatron also needs
VERL_NPU_UPSTREAMS, a folder with the packages of BESIDE, and older releases of verl need it, too. mbridge 0.15.1 needs
transformers 4 for its `rope_theta`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .serving import answer
from .test_vllm_ascend_layers import OPERATORS, later

__all__ = ["later"]
pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("trainer_layers.py")
BESIDE = ("mindspeed-core_r0.16.0", "megatron-0.16.0", "mbridge-0.15.1", "triton-3.4.0", "transformers-4.57.6")


def said(
    later: str, folder: Path, kind: str, dtype: str, strategy: str, parallel: int, fault: str = "none", *verl: str
) -> dict[str, Any]:
    beside = (*verl, *(BESIDE if strategy == "megatron" else BESIDE[-1:] if len(verl) == 1 else ()))
    paths = [Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"), name) for name in beside]
    if not all(path.is_dir() for path in paths):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(beside)}")
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths))} if paths else {}
    words = (kind, dtype, strategy, str(parallel), fault, str(folder))
    return answer(PROGRAM, *words, folder=folder, by=later, **variables)


def transformers(later: str, step: str, issue: str, folder: Path, release: str = "") -> dict[str, Any]:
    """Do a step of transformers_layers.py with a release, or else with the installed one."""
    path = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"), f"transformers-{release}")
    if release and not path.is_dir():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {path.name}")
    variables = {"PYTHONPATH": str(path)} if release else {}
    program = Path(__file__).with_name("transformers_layers.py")
    return answer(program, step, issue, str(folder), folder=folder, by=later, **variables)


@pytest.mark.parametrize(
    ("kind", "dtype", "strategy", "parallel"),
    [
        ("qwen3", "bfloat16", "fsdp2", 2),
        ("qwen3_moe", "bfloat16", "fsdp", 1),
        ("qwen2", "float32", "fsdp2", 1),
        ("qwen2", "bfloat16", "megatron", 2),
        ("qwen3", "bfloat16", "megatron", 1),
    ],
)
def test_its_layers_are_as_expected(
    later: str, kind: str, dtype: str, strategy: str, parallel: int, tmp_path: Path
) -> None:
    found = said(later, tmp_path, kind, dtype, strategy, parallel)
    assert found["first"] is None
    assert len(found["sides"]["trainer"]["operators"]) == OPERATORS[kind]


@pytest.mark.parametrize(
    ("strategy", "fault", "operator", "reason"),
    [
        ("fsdp2", "weight", "layers.1.self_attn.o_proj", "another weight"),
        ("megatron", "weight", "layers.1.self_attn.o_proj", "another weight"),
        ("megatron", "base", "layers.0.self_attn.rotary", "rotary base"),
        ("megatron", "epsilon", "layers.0.input_layernorm", "epsilon of a norm"),
    ],
)
def test_a_fault_of_a_trainer_is_found(
    later: str, strategy: str, fault: str, operator: str, reason: str, tmp_path: Path
) -> None:
    found = said(later, tmp_path, "qwen3", "bfloat16", strategy, 2, fault)
    assert (found["first"]["side"], found["first"]["operator"]) == ("trainer", operator)
    assert found["cause"]["reason"] == reason


def test_experts_of_megatron_with_normalized_weights_are_as_expected(later: str, tmp_path: Path) -> None:
    found = said(later, tmp_path, "qwen3_moe", "bfloat16", "megatron", 1, "normalized")
    assert found["first"] is None
    assert len(found["sides"]["trainer"]["operators"]) == OPERATORS["qwen3_moe"]


def test_mbridge_normalizes_the_weights_of_experts_although_the_model_does_not(later: str, tmp_path: Path) -> None:
    """mbridge/models/qwen3moe.py reads no norm_topk_prob, which is False unless a checkpoint sets it."""
    found = said(later, tmp_path, "qwen3_moe", "bfloat16", "megatron", 1)
    assert (found["first"]["side"], found["first"]["operator"]) == ("trainer", "layers.0.mlp")
    assert found["cause"] == {"reason": "routing of experts", "said": "norm_topk_prob is True instead of False"}
    assert len(found["sides"]["trainer"]["operators"]) == OPERATORS["qwen3_moe"]


@pytest.mark.parametrize(
    ("dtype", "parallel", "fault", "operator", "cause"),
    [
        # verl#6150: autocast computes in bfloat16, whatever mixed_precision says.
        (
            "float32",
            1,
            "none",
            "layers.0.self_attn.q_proj",
            {"reason": "dtype", "said": "bfloat16 instead of float32"},
        ),
        # verl#6345: without packing, the attention mask is made from the answers' mask.
        (
            "bfloat16",
            1,
            "padded",
            "layers.0.self_attn.attention",
            {"reason": "attention mask", "said": "token 12 of sequence 0 sees tokens 0 to 11"},
        ),
        # verl#6268: with Ulysses, each rank shifts the labels of its own part.
        (
            "bfloat16",
            2,
            "fused",
            "logprobs",
            {
                "reason": "probability of another token",
                "said": "at the end of each of 2 parts of packed sequences, the part's first token",
            },
        ),
    ],
)
def test_a_fault_of_released_verl_is_found_and_its_fix_is_as_expected(
    later: str, dtype: str, parallel: int, fault: str, operator: str, cause: dict[str, str], tmp_path: Path
) -> None:
    found = []
    for release in ("verl-v0.7.1", "verl-v0.8.0"):
        (tmp_path / release).mkdir()
        found.append(said(later, tmp_path / release, "qwen3", dtype, "fsdp2", parallel, fault, release))
    before, after = found
    assert (before["first"]["side"], before["first"]["operator"]) == ("trainer", operator)
    assert before["cause"] == cause
    assert after["first"] is None


@pytest.mark.parametrize(
    ("issue", "releases", "side", "operator", "cause"),
    [
        (
            "transformers#36877",
            ("4.50.3", "4.51.3"),
            "engine",
            "layers.0.self_attn.rotary",
            {"reason": "rotary scaling", "said": "the ramp of 128 positions instead of 512"},
        ),
        (
            "transformers#38224",
            ("4.55.4", "4.56.2"),
            "engine",
            "layers.0.self_attn.rotary",
            {"reason": "rotary scaling", "said": "a factor of 4 instead of 2"},
        ),
        (
            "transformers#38002",
            ("4.51.3", "4.52.4"),
            "trainer",
            "layers.0.self_attn.attention",
            {"reason": "attention mask", "said": "token 32 of sequence 0 sees tokens 1 to 32"},
        ),
        (
            "transformers#45440",
            ("5.5.0", "5.6.0"),
            "engine",
            "layers.1.mlp",
            {
                "reason": "routing of experts",
                "said": "token 0 of sequence 0 has the experts [2, 3] instead of [5, 6]",
            },
        ),
    ],
)
def test_a_fault_of_released_transformers_is_found_and_its_fix_is_as_expected(
    later: str, issue: str, releases: tuple[str, str], side: str, operator: str, cause: dict[str, str], tmp_path: Path
) -> None:
    """The reference is the trainer's transformers. So a fault of an operator itself is seen in the engine."""
    transformers(later, "answer", issue, tmp_path)
    before, after = (transformers(later, "compare", issue, tmp_path, release) for release in releases)
    assert (before["first"]["side"], before["first"]["operator"]) == (side, operator)
    assert before["cause"] == cause
    assert after["first"] is None


@pytest.mark.parametrize(
    ("issue", "releases", "operator"),
    [
        ("transformers#45513", ("5.6.0", "5.7.0"), "layers.0.linear_attn.delta_rule"),
        ("transformers#42508", ("4.57.6", "5.0.0"), "layers.0.self_attn.rotary"),
    ],
)
def test_a_fault_of_released_transformers_that_depends_on_chunks_is_found_and_its_fix_is_as_expected(
    later: str, issue: str, releases: tuple[str, str], operator: str, tmp_path: Path
) -> None:
    found = []
    for release in releases:
        (tmp_path / release).mkdir()
        transformers(later, "answer", issue, tmp_path / release, release)
        found.append(transformers(later, "compare", issue, tmp_path / release))
    before, after = found
    assert (before["first"]["side"], before["first"]["operator"]) == ("engine", operator)
    assert before["cause"]["reason"] == "chunked prefill"
    assert after["first"] is None


@pytest.mark.parametrize(("release", "fixed"), [("verl-v0.8.0", False), ("verl-v0.9.0", True)])
def test_packed_sequences_of_a_linear_attention_see_each_other_until_it_is_fixed(
    later: str, release: str, fixed: bool, tmp_path: Path
) -> None:
    """verl#6660. What is wrong is known, but the cause is not tried."""
    found = said(later, tmp_path, "qwen3_5", "bfloat16", "fsdp2", 1, "none", release, "transformers-5.5.0")
    assert (found["first"] is None) == fixed
    if not fixed:
        assert (found["first"]["side"], found["first"]["operator"]) == ("trainer", "layers.0.linear_attn.delta_rule")
        assert found["cause"] is None
