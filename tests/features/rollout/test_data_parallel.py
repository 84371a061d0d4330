"""Engines that share a model: which ranks belong together, the variables that vLLM gets, and which vLLM reads them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_npu.features.rollout import data_parallel
from verl_npu.features.rollout.data_parallel import Place, data_parallel_size, join, sharing_obstacle, variables
from verl_npu.registry.source.tree import SourceTree

from .job import job


def engine(**settings: object) -> object:
    return job(**settings).actor_rollout_ref.rollout


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, 1),
        ({"data_parallel_size": 4}, 4),
        ({"dp_model_parallel_size": 32}, 32),
        ({"data_parallel_size": 1, "dp_model_parallel_size": 8}, 8),
        ({"data_parallel_size": None}, 1),
    ],
)
def test_a_setting_of_either_name_says_how_many_share_a_model(asked: dict[str, object], size: int) -> None:
    assert data_parallel_size(engine(**asked)) == size


def test_ranks_of_one_part_of_the_model_meet_where_the_first_of_them_is() -> None:
    """vLLM's order of ranks is (external, data, tensor)."""
    addresses = [(f"host{rank // 4}", 1000 + rank) for rank in range(8)]
    met = [variables(Place(rank, tensor=2, data=2), addresses) for rank in range(8)]
    assert [each["VLLM_DP_RANK"] for each in met] == ["0", "0", "1", "1"] * 2
    assert {each["VLLM_DP_SIZE"] for each in met} == {"2"}
    assert [each["VLLM_DP_MASTER_PORT"] for each in met] == [str(1000 + first) for first in (0, 1, 0, 1, 4, 5, 4, 5)]
    assert [each["VLLM_DP_MASTER_IP"] for each in met] == ["host0"] * 4 + ["host1"] * 4


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of a process that is rank 3 of 4."""
    distributed = pytest.importorskip("torch").distributed
    monkeypatch.setattr(distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(data_parallel, "_exchange", lambda world: [("host", port) for port in range(world)])
    found: dict[str, str] = {}
    monkeypatch.setattr(data_parallel, "os", SimpleNamespace(environ=found))
    return found


def test_an_engine_is_told_before_it_is_made(told: dict[str, str]) -> None:
    join(engine(tensor_model_parallel_size=2, dp_model_parallel_size=2))
    assert told == {
        "VLLM_DP_SIZE": "2",
        "VLLM_DP_RANK": "1",
        "VLLM_DP_MASTER_IP": "host",
        "VLLM_DP_MASTER_PORT": "1",
    }


def test_an_engine_that_shares_nothing_is_told_nothing(told: dict[str, str]) -> None:
    join(engine(tensor_model_parallel_size=2))
    assert told == {}


def vllm(folder: Path, text: str | None) -> SourceTree:
    (folder / "vllm/v1/engine").mkdir(parents=True)
    (folder / "vllm/__init__.py").touch()
    if text is not None:
        (folder / "vllm/v1/engine/llm_engine.py").write_text(text)
    return SourceTree.at(folder, ("vllm",))


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("class LLMEngine:\n    def step(self):\n        self.should_execute_dummy_batch = False\n", True),
        ("class LLMEngine:\n    def step(self): ...\n", False),
        (None, False),
    ],
    ids=["vLLM 0.10", "vLLM 0.8", "vLLM 0.7"],
)
def test_engines_are_refused_that_take_each_step_alone(text: str | None, shared: bool, tmp_path: Path) -> None:
    found = sharing_obstacle(engine(data_parallel_size=2), vllm(tmp_path, text))
    assert found == ("" if shared else "a vLLM whose engines step alone")


def test_where_no_vllm_is_installed_nothing_speaks_against_it() -> None:
    assert sharing_obstacle(engine(data_parallel_size=2), SourceTree.installed(("vllm_that_is_nowhere",))) == ""
