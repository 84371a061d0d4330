"""What a vLLM worker was given through verl's checkpoint engine is compared with what it holds, if requested."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import EngineError
from verl_npu.features.weight_sync.patches.checkpoint_engine import (
    note_given_weights_for_proof,
    process_weights_once_and_prove_them,
)

GIVEN = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}


class Worker:
    """verl's extension of a vLLM worker: a sync is two buckets, of which it loads those that it does not lose."""

    def __init__(self, lost: str = "") -> None:
        self.model_runner: Any = SimpleNamespace(model=torch.nn.Linear(2, 3))
        self._lost = lost

    def load(self, worker: Any, weights: list[tuple[str, torch.Tensor]], **kwargs: Any) -> None:
        own = self.model_runner.model.state_dict()
        for name, tensor in weights:
            if name != self._lost:
                own[name].copy_(tensor)

    def take(self, worker: Any, **kwargs: Any) -> str:
        for item in GIVEN.items():
            note_given_weights_for_proof(self.load, self, [item])
        return "done"


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", "engine")


@pytest.mark.usefixtures("requested")
def test_each_sync_says_that_the_engine_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    worker = Worker()
    assert [process_weights_once_and_prove_them(worker.take, worker) for _ in range(2)] == ["done", "done"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert f"weight sync {number} of the checkpoint engine: the engine's worker" in line
        assert line.endswith("the engine holds them bit for bit")


@pytest.mark.usefixtures("requested")
def test_a_parameter_that_was_not_loaded_is_named() -> None:
    worker = Worker(lost="bias")
    with pytest.raises(EngineError, match="bias: the engine holds other values"):
        process_weights_once_and_prove_them(worker.take, worker)


@pytest.mark.usefixtures("requested")
def test_an_adapter_is_not_compared_with_the_model() -> None:
    worker = Worker(lost="bias")
    assert (
        process_weights_once_and_prove_them(worker.take, worker, peft_config={"r": 8}, base_sync_done=True) == "done"
    )


@pytest.mark.parametrize("check", ["none", "checksums"])
def test_nothing_is_kept_unless_requested(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", check)
    worker = Worker(lost="bias")
    assert process_weights_once_and_prove_them(worker.take, worker) == "done"
    assert set(vars(worker)) == {"model_runner", "_lost"}
