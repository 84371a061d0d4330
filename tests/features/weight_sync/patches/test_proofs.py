"""On request, the weights that a vLLM engine received are compared with the weights that it holds after each sync.

The weights come through verl's checkpoint engine, or over the trainer's own NPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.patches.checkpoint_engine import (
    note_given_weights_for_proof,
    process_weights_once_and_prove_them,
)
from verl_npu.features.weight_sync.patches.vllm_model import (
    prove_colocated_engine,
    prove_engine_beside_fsdp,
    prove_engine_beside_megatron,
)

GIVEN = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}


class Worker:
    """A stand-in for verl's extension of a vLLM worker: it loads the buckets of a sync that it does not lose."""

    said = "weight sync {} of the checkpoint engine: the engine's worker "

    def __init__(self, lost: str = "") -> None:
        self.model_runner: Any = SimpleNamespace(model=torch.nn.Linear(2, 3))
        self._lost = lost

    def load(self, worker: Any, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: Any) -> None:
        own = self.model_runner.model.state_dict()
        for name, tensor in weights:
            if name != self._lost:
                own[name].copy_(tensor)

    def take(self, worker: Any, **kwargs: Any) -> str:
        for item in GIVEN.items():
            note_given_weights_for_proof(self.load, self, [item])
        return "done"

    def sync(self, **kwargs: Any) -> object:
        return process_weights_once_and_prove_them(self.take, self, **kwargs)


class Rollout(Worker):
    """A stand-in for verl's rollout, with that engine in its own process."""

    said = "weight sync {} of the engine in this process "

    def __init__(self, lost: str = "") -> None:
        super().__init__(lost)
        self.inference_engine: Any = SimpleNamespace(worker=SimpleNamespace(model_runner=self.model_runner))

    async def update(self, rollout: Any, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: Any) -> str:
        self.load(rollout, weights)
        return "done"

    def sync(self, **kwargs: Any) -> object:
        return asyncio.run(prove_colocated_engine(self.update, self, iter(GIVEN.items()), **kwargs))  # type: ignore[arg-type]


class FSDPManager(Worker):
    """A stand-in for the manager that verl of August 2025 has between FSDP and an engine in the same process."""

    said = Rollout.said

    def __init__(self, lost: str = "") -> None:
        super().__init__(lost)
        model = self.model_runner.model
        model.load_weights = lambda weights: self.load(self, weights)
        self.loader = model.load_weights

    def update(self, manager: Any, updated_params: Any, peft_config: Any = None) -> str:
        self.model_runner.model.load_weights(iter(updated_params.items()))
        return "done"

    def sync(self, peft_config: Any = None, **_kwargs: Any) -> object:
        try:
            return prove_engine_beside_fsdp(self.update, self, GIVEN, peft_config=peft_config)
        finally:
            assert self.model_runner.model.load_weights is self.loader


class MegatronManager(FSDPManager):
    """The same manager for Megatron, which hands over the weights when it is entered."""

    def enter(self, manager: Any) -> str:
        return self.update(manager, GIVEN)

    def sync(self, **kwargs: Any) -> object:
        if kwargs:  # it knows no adapters
            return "done"
        return prove_engine_beside_megatron(self.enter, self)


@pytest.fixture(params=[Worker, Rollout, FSDPManager, MegatronManager])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Worker]:
    """Return an engine for which the user has requested the comparison."""
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", "engine")
    return request.param  # type: ignore[no-any-return]


def test_each_sync_says_that_the_engine_holds_it(kind: type[Worker], capsys: pytest.CaptureFixture[str]) -> None:
    engine = kind()
    assert [engine.sync() for _ in range(2)] == ["done", "done"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert kind.said.format(number) in line
        assert line.endswith("the engine holds them bit for bit")


def test_a_parameter_that_was_not_loaded_is_named(kind: type[Worker]) -> None:
    with pytest.raises(WeightSyncError, match="bias: the engine holds other values"):
        kind(lost="bias").sync()


def test_an_adapter_is_not_compared_with_the_model(kind: type[Worker]) -> None:
    assert kind(lost="bias").sync(peft_config={"r": 8}, base_sync_done=True) == "done"


@pytest.mark.parametrize("check", ["none", "checksums"])
def test_nothing_is_kept_unless_requested(check: str, kind: type[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", check)
    engine = kind(lost="bias")
    before = set(vars(engine))
    assert engine.sync() == "done"
    assert set(vars(engine)) == before
