"""The layers of verl's own FSDP and Megatron engines on two virtual NPUs are those of transformers, and faults are found.

It runs where VERL_NPU_VLLM_ASCEND is set, because that environment has a verl with these engines. Megatron also needs
VERL_NPU_UPSTREAMS, a folder with the packages of BESIDE. mbridge 0.15.1 needs transformers 4 for its `rope_theta`.
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
    later: str, folder: Path, kind: str, dtype: str, strategy: str, parallel: int, fault: str = "none"
) -> dict[str, Any]:
    variables = {}
    if strategy == "megatron":
        paths = [Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"), name) for name in BESIDE]
        if not all(path.is_dir() for path in paths):
            pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(BESIDE)}")
        variables = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = (kind, dtype, strategy, str(parallel), fault, str(folder))
    return answer(PROGRAM, *words, folder=folder, by=later, **variables)


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


def test_mbridge_normalizes_the_weights_of_experts_although_the_model_does_not(later: str, tmp_path: Path) -> None:
    """mbridge/models/qwen3moe.py reads no norm_topk_prob, which is False unless a checkpoint sets it."""
    found = said(later, tmp_path, "qwen3_moe", "bfloat16", "megatron", 1)
    assert (found["first"]["side"], found["first"]["operator"]) == ("trainer", "layers.0.mlp")
    assert found["cause"] == {"reason": "routing of experts", "said": "norm_topk_prob is True instead of False"}
    assert len(found["sides"]["trainer"]["operators"]) == OPERATORS["qwen3_moe"]
