"""Upstream's recipes that import flash_attn, at the pins that have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from testing.interpreter import python

pytest.importorskip("torch")

PROJECT = Path(__file__).resolve().parents[3]
PROGRAM = """
import torch
from verl_npu.features.attention.rewriting import import_module
from verl_npu.features.attention.padding import BERT_PADDING, PADDING
import recipe.prime
try:
    import recipe.prime.prime_dp_rm
except ModuleNotFoundError as error:
    print(error.name)
module = import_module("recipe.prime.prime_dp_rm", BERT_PADDING, PADDING)
print(module.pad_input.__module__, module.DataParallelPRIMERewardModel.__module__)
"""


@pytest.mark.upstream
@pytest.mark.parametrize("pin", ["796871d7", "ccd7d934"])
def test_the_reward_model_of_prime_is_imported(pin: str) -> None:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip("recipes are in no wheel: set VERL_NPU_UPSTREAMS to a folder with verl-796871d7/ and so on")
    result = python("-c", PROGRAM, paths=[Path(folder) / f"verl-{pin}", PROJECT], VERL_NPU="off")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "flash_attn",
        "verl_npu.features.attention.padding recipe.prime.prime_dp_rm",
    ]
