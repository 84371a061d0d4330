"""A data set, a reward and an endpoint, all of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.evaluation import dataset, reward
from verl_npu_workbench.evaluation.endpoint import Sampling
from verl_npu_workbench.evaluation.evaluation import Plan

from .endpoint import Served, serving

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("openai")
pytest.importorskip("scipy")

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, **more):
    assert extra_info["index"] >= 0
    return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth, "said": solution_str}


def scaled(data_source, solution_str, ground_truth, extra_info, by=1):
    return by * float(solution_str == ground_truth)


async def later(data_source, solution_str, ground_truth, extra_info):
    return 0.5


def broken(data_source, solution_str, ground_truth, extra_info):
    return {"acc": 1}


def raises(data_source, solution_str, ground_truth, extra_info):
    raise KeyError("no such key")
"""


def row(index: int, **more: Any) -> dict[str, Any]:
    """Return a row of a data set in verl's layout."""
    return {
        "data_source": "sums" if index % 2 else "other/sums",
        "prompt": [{"role": "user", "content": f"{index} + 2"}],
        "reward_model": {"style": "rule", "ground_truth": str(index + 2)},
        "extra_info": {"index": index, "split": "test"},
    } | more


@pytest.fixture
def endpoint() -> Iterator[Served]:
    """An endpoint that adds up."""
    with serving() as served:
        served.answer = lambda request: str(sum(map(int, request["messages"][-1]["content"].split("+"))))
        yield served


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as parquet."""
    import pyarrow.parquet

    def call(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "data.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        return path

    return call


@pytest.fixture
def data(write: Callable[..., Path]) -> Path:
    """Four sums."""
    return write(*map(row, range(4)))


@pytest.fixture
def function(tmp_path: Path) -> Path:
    """A file of reward functions."""
    path = tmp_path / "reward.py"
    path.write_text(REWARD)
    return path


@pytest.fixture
def plan(endpoint: Served, data: Path, function: Path, tmp_path: Path) -> Callable[..., Plan]:
    """A plan of two rounds over the four sums."""

    def call(**more: Any) -> Plan:
        given: dict[str, Any] = {
            "dataset": dataset.read(data),
            "reward": reward.load(function, "compute_score", {}),
            "url": endpoint.url,
            "model": None,
            "rounds": 2,
            "sampling": Sampling(),
            "output": tmp_path / "evaluation",
            "concurrency": 3,
            "retries": 2,
        }
        return Plan(**given | more)

    return call
