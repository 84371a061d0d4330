"""An engine on its trainer's own NPUs is proven after each sync, if the user asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import EngineError
from verl_npu.features.weight_sync.patches.vllm_model import prove_colocated_engine

GIVEN = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}


class Rollout:
    """verl's, with an engine in this process that loads all but what it loses."""

    def __init__(self, lost: str = "") -> None:
        runner = SimpleNamespace(model=torch.nn.Linear(2, 3))
        self.inference_engine: Any = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
        self._lost = lost

    async def update(self, rollout: Any, weights: Iterator[tuple[str, torch.Tensor]], **kwargs: Any) -> str:
        own = self.inference_engine.worker.model_runner.model.state_dict()
        for name, tensor in weights:
            if name != self._lost:
                own[name].copy_(tensor)
        return "done"

    def sync(self, **kwargs: Any) -> object:
        return asyncio.run(prove_colocated_engine(self.update, self, iter(GIVEN.items()), **kwargs))  # type: ignore[arg-type]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", "engine")


@pytest.mark.usefixtures("requested")
def test_each_sync_says_what_the_engine_holds(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = Rollout()
    assert [rollout.sync() for _ in range(2)] == ["done", "done"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("(")[0] for line in lines] == [
        f"verl-npu: weight sync {number} of the engine in this process " for number in (1, 2)
    ]
    assert all(line.endswith("2 tensors, the engine holds them bit for bit") for line in lines)


@pytest.mark.usefixtures("requested")
def test_a_weight_that_did_not_arrive_is_named() -> None:
    with pytest.raises(EngineError, match="bias: the engine holds other values"):
        Rollout(lost="bias").sync()


@pytest.mark.usefixtures("requested")
def test_an_adapter_is_not_compared_with_the_model() -> None:
    assert Rollout(lost="bias").sync(peft_config={"r": 8}, base_sync_done=True) == "done"


@pytest.mark.parametrize("check", ["none", "checksums"])
def test_nothing_is_compared_unless_requested(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", check)
    assert Rollout(lost="bias").sync() == "done"
