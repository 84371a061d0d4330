"""Deep sleep and those tensors of a real vllm-ascend that are neither parameters nor buffers.

See vllm_ascend_hidden.py.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .serving import answers

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_hidden.py")
EXPERTS = "TokenDispatcherWithAll2AllV.expert_ids_per_ep_rank"


@cache
def said(python: str, folder: Path, kind: str, mode: str = "NONE", disabled: str = "") -> list[dict[str, Any]]:
    """Return all that one engine said: it takes all changes one after the other."""
    where = folder / f"{Path(python).parents[1].name}-{kind}-{mode}-{disabled}"
    where.mkdir()
    variables = {"PYTHONPATH": str(PROGRAM.parent), "VERL_NPU_DISABLE": disabled}
    return answers(PROGRAM, kind, str(where / "model"), mode, folder=where, by=python, timeout=900, **variables)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hidden")


@pytest.mark.parametrize("kind", ["qwen3_moe_ep", "deepseek_v3_ep"])
def test_each_that_changed_after_waking_is_named_and_nothing_else(python: str, kind: str, folder: Path) -> None:
    """Copies of weights are made anew by the sync, so their change does no harm."""
    begun, *spoiled, last = said(python, folder, kind)
    assert [EXPERTS] in begun["ranks"][0]["hidden"]
    for each in spoiled:
        for rank in map(json.loads, each["spoiled"]):
            if rank["names"] and not rank["names"][0].startswith("AscendMLAImpl."):
                assert any(
                    f"{name}: the tensor is neither a weight nor a buffer" in rank["error"] for name in rank["names"]
                )
            else:
                assert rank["error"] is None
            assert rank["warned"] == []
    assert [json.loads(each) for each in last["proofs"]] == [{"names": [], "error": None, "warned": []}] * 2


@pytest.mark.parametrize("kind", ["qwen3_moe_ep", "deepseek_v3_ep"])
def test_each_block_that_sleeps_belongs_to_a_tensor_of_the_heap(python: str, kind: str, folder: Path) -> None:
    for rank in said(python, folder, kind)[0]["ranks"]:
        assert rank["blocks"] > 0
        assert rank["unheld"] == 0


def test_each_block_that_graphs_read_belongs_to_a_tensor_of_the_heap(python: str, folder: Path) -> None:
    for rank in said(python, folder, "qwen3_moe", "PIECEWISE")[0]["ranks"]:
        assert rank["read"] > 0
        assert rank["read unheld"] == 0


def test_experts_answer_wrongly_without_the_feature_and_the_proof_names_the_tensor(python: str, folder: Path) -> None:
    """verl#7086: fluent and wrong after the first sync that follows a deep sleep."""
    begun, *_, last = said(python, folder, "qwen3_moe_ep")
    assert begun["awake"] == last["tokens"] == begun["expected"]
    begun, last = said(python, folder, "qwen3_moe_ep", disabled="engine_sleep")
    assert begun["awake"] == begun["expected"]
    assert last["tokens"] != begun["expected"]
    for rank in map(json.loads, last["proofs"]):
        assert any("engine_sleep is not applied" in each and EXPERTS in each for each in rank["warned"])
