"""An engine that is closed while it holds half of a sync, and read back."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.engines.vllm import VLLMEngine, refuse_lost_rl_mode, refuse_nz, warn_of_nz


class Fused(torch.nn.Module):
    """A layer like those of vLLM's models, with two projections in one parameter."""

    packed_modules_mapping: ClassVar = {"gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.gate_up_proj = torch.nn.Linear(3, 4, bias=False)
        self.head = torch.nn.Linear(3, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if "gate_proj" in name:
                self.mlp.gate_up_proj.weight.data[:2].copy_(tensor)
            elif "up_proj" in name:
                self.mlp.gate_up_proj.weight.data[2:].copy_(tensor)
            else:
                self.head.weight.data.copy_(tensor)


SENT = {
    "mlp.gate_proj.weight": torch.randn(2, 3),
    "mlp.up_proj.weight": torch.randn(2, 3),
    "head.weight": torch.randn(5, 3),
}


class Runner:
    """A stand-in for vLLM's model runner; later batches may replay a graph of the first."""

    def __init__(self, model: Any) -> None:
        self.model, self._recorded = model, None

    def execute_model(self, batch: torch.Tensor, replay: bool = False) -> torch.Tensor:
        if self._recorded is None or not replay:
            self._recorded = self.model(batch)
        return self._recorded


@pytest.mark.parametrize("replay", [False, True], ids=["the model is called", "a graph is replayed"])
def test_an_engine_is_closed_from_its_first_load_until_the_sync_is_whole(replay: bool) -> None:
    runner = Runner(Fused())
    engine, batch = VLLMEngine(runner), torch.randn(1, 3)
    runner.execute_model(batch, replay)
    engine.load(list(SENT.items())[:1])
    with pytest.raises(WeightSyncError, match="did not finish"):
        runner.execute_model(batch, replay)
    # A later sync finds the same runner, through an engine of its own.
    later = VLLMEngine(runner)
    later.load(list(SENT.items()))
    later.open()
    runner.execute_model(batch, replay)


def test_what_another_library_put_in_its_place_is_there_again_afterwards() -> None:
    runner = Runner(Fused())
    runner.execute_model = theirs = lambda batch: batch  # type: ignore[method-assign,assignment]
    engine = VLLMEngine(runner)
    engine.load(list(SENT.items()))
    engine.open()
    assert runner.execute_model is theirs


def test_an_engine_that_holds_what_was_loaded_is_proven() -> None:
    engine = VLLMEngine(Runner(Fused()))
    engine.expect(list(SENT.items()))
    engine.load(list(SENT.items()))
    assert engine.prove() == "the engine holds them bit for bit"


def test_an_engine_that_holds_something_else_is_refused() -> None:
    model = Fused()
    engine = VLLMEngine(Runner(model))
    engine.expect(list(SENT.items()))
    engine.load(list(SENT.items()))
    model.mlp.gate_up_proj.weight.data[3, 0] += 1
    with pytest.raises(WeightSyncError, match=r"mlp\.up_proj\.weight: the engine holds other values"):
        engine.prove()


def test_each_sync_of_an_engine_is_proven_by_itself() -> None:
    engine = VLLMEngine(Runner(Fused()))
    for factor in (1, 2):
        sent = [(name, factor * tensor) for name, tensor in SENT.items()]
        engine.expect(sent)
        engine.load(sent)
        engine.prove()
    with pytest.raises(WeightSyncError, match="no sent tensor belongs to this parameter"):
        engine.prove()


@pytest.mark.parametrize(("setting", "refused"), [(None, True), ("1", True), ("0", False)])
def test_the_layout_that_garbles_new_weights_is_refused(
    setting: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm_ascend", types.ModuleType("vllm_ascend"))
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    if setting is not None:
        monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", setting)
    if refused:
        with pytest.raises(WeightSyncError, match="VLLM_ASCEND_ENABLE_NZ=0"):
            refuse_nz()
    else:
        refuse_nz()


@pytest.mark.upstream
@pytest.mark.parametrize(("tag", "read"), [("v0.7.3.post1", False), ("v0.9.1", False), ("v0.11.0", True)])
def test_a_vllm_ascend_that_does_not_know_the_variable_needs_none(
    tag: str, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"), f"vllm-ascend-{tag}", "vllm_ascend", "envs.py")
    if not path.is_file():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with vllm-ascend-{tag}/")
    spec = importlib.util.spec_from_file_location("vllm_ascend.envs", path)
    assert spec is not None
    assert spec.loader is not None
    variables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(variables)
    monkeypatch.setitem(sys.modules, "vllm_ascend", types.ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.envs", variables)
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    with pytest.raises(WeightSyncError, match="VLLM_ASCEND_ENABLE_NZ=0") if read else nullcontext():
        refuse_nz()


class Laid:
    """A model with a parameter in each of these layouts, on this device."""

    def __init__(self, device: str, **layouts: int) -> None:
        on = types.SimpleNamespace(type=device)
        self.parameters = {name: types.SimpleNamespace(device=on, layout=number) for name, number in layouts.items()}

    def named_parameters(self) -> Any:
        return self.parameters.items()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings printed with a torch_npu that knows layouts."""
    said: list[str] = []
    monkeypatch.setattr("verl_npu.features.weight_sync.engines.vllm.warn", said.append)
    known: Any = types.ModuleType("torch_npu")
    known.get_npu_format = lambda parameter: parameter.layout
    monkeypatch.setitem(sys.modules, "torch_npu", known)
    return said


def test_parameters_that_something_laid_out_in_nz_are_named(warned: list[str]) -> None:
    warn_of_nz(Laid("npu", w13_weight=29, w2_weight=29, norm=2))  # type: ignore[arg-type]
    (line,) = warned
    assert line.startswith("the rollout engine has parameters in the FRACTAL_NZ layout (2): w13_weight, w2_weight.")


@pytest.mark.parametrize(
    "model", [Laid("npu", norm=2), Laid("cpu", w13_weight=29)], ids=["no such layout", "a host's"]
)
def test_other_layouts_are_not_spoken_of(model: Any, warned: list[str]) -> None:
    warn_of_nz(model)
    assert warned == []


def test_a_device_that_keeps_no_layouts_is_taken_as_it_is(warned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(parameter: object) -> int:
        raise NotImplementedError

    monkeypatch.setattr(sys.modules["torch_npu"], "get_npu_format", unknown)
    warn_of_nz(Laid("npu", w13_weight=29))  # type: ignore[arg-type]
    assert warned == []


class Configuration:
    """vllm-ascend's configuration from 0.23 on."""

    weight_nz_mode = 2


def no_engine() -> Configuration:
    raise RuntimeError("Ascend config is not initialized. Please call init_ascend_config first.")


@pytest.fixture
def ascend_config(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Install a stand-in for vllm-ascend's module, with no configuration yet."""
    module: Any = types.ModuleType("vllm_ascend.ascend_config")
    module.get_ascend_config = no_engine
    monkeypatch.setitem(sys.modules, "vllm_ascend", types.ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "0")
    return module  # type: ignore[no-any-return]


def test_the_key_that_vllm_ascend_takes_instead_of_the_variable_is_refused(ascend_config: Any) -> None:
    ascend_config.get_ascend_config = Configuration
    with pytest.raises(WeightSyncError, match=r"additional_config\.weight_nz_mode.*found weight_nz_mode=2"):
        refuse_nz()


@pytest.mark.parametrize("configuration", [no_engine, object], ids=["no engine yet", "before 0.23"])
def test_without_that_key_the_variable_decides(configuration: object, ascend_config: Any) -> None:
    ascend_config.get_ascend_config = configuration
    refuse_nz()


# An engine that vllm-ascend runs without the switch that it was given.

GIVEN = {"rl_config": {"enabled": True}}


def runner(additional: object) -> types.SimpleNamespace:
    return types.SimpleNamespace(vllm_config=types.SimpleNamespace(additional_config=additional))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Install vllm-ascend's one configuration of the process, and return it."""
    configuration = types.SimpleNamespace(rl_config=types.SimpleNamespace(enabled=False))
    module = types.ModuleType("vllm_ascend.ascend_config")
    module.get_ascend_config = lambda: configuration  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
    return configuration


@pytest.mark.usefixtures("used")
def test_a_lost_switch_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match="another engine in this process has already set False"):
        refuse_lost_rl_mode(runner(GIVEN))


def test_a_switch_that_is_on_passes(used: types.SimpleNamespace) -> None:
    used.rl_config.enabled = True
    refuse_lost_rl_mode(runner(GIVEN))


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("additional", [None, {}, {"rl_config": {"enabled": False}}])
def test_an_engine_that_was_given_none_passes(additional: object) -> None:
    refuse_lost_rl_mode(runner(additional))


def test_a_release_that_does_not_know_it_passes(used: types.SimpleNamespace) -> None:
    del used.rl_config
    refuse_lost_rl_mode(runner(GIVEN))


def test_a_process_without_vllm_ascend_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm_ascend.ascend_config", raising=False)
    refuse_lost_rl_mode(runner(GIVEN))
