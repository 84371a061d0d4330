"""The layers of verl's own FSDP engine on two virtual NPUs are those of transformers, and a stale weight is found.

It runs where VERL_NPU_VLLM_ASCEND is set, because that environment has a verl with this engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .serving import answer
from .test_vllm_ascend_layers import OPERATORS, later

__all__ = ["later"]
pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("fsdp_layers.py")


def said(later: str, folder: Path, kind: str, dtype: str, strategy: str, ulysses: int, fault: str) -> dict[str, Any]:
    words = (kind, dtype, strategy, str(ulysses), fault, str(folder))
    return answer(PROGRAM, *words, folder=folder, by=later)


@pytest.mark.parametrize(
    ("kind", "dtype", "strategy", "ulysses"),
    [
        ("qwen3", "bfloat16", "fsdp2", 2),
        ("qwen3_moe", "bfloat16", "fsdp", 1),
        ("qwen2", "float32", "fsdp2", 1),
    ],
)
def test_its_layers_are_as_expected(
    later: str, kind: str, dtype: str, strategy: str, ulysses: int, tmp_path: Path
) -> None:
    found = said(later, tmp_path, kind, dtype, strategy, ulysses, "none")
    assert found["first"] is None
    assert len(found["sides"]["trainer"]["operators"]) == OPERATORS[kind]


def test_a_stale_weight_is_found(later: str, tmp_path: Path) -> None:
    found = said(later, tmp_path, "qwen3", "bfloat16", "fsdp2", 2, "weight")
    assert (found["first"]["side"], found["first"]["operator"]) == ("trainer", "layers.1.self_attn.o_proj")
    assert found["cause"]["reason"] == "another weight"
