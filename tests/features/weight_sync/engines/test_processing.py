"""A model whose weights change their layout after loading is right after a sync, or refused before one.

tests/e2e/test_vllm_ascend_layout.py tests the same with vllm-ascend's own classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.engines.processing import (
    lay_out_experts_for_loading,
    refresh_copies_on_load,
    refuse_disposed_projections,
    refuse_square_experts,
)
from verl_npu.features.weight_sync.patches.vllm_model import prepare_vllm_model_for_new_weights


class Attention:
    """vllm-ascend's MLA: it multiplies with copies of kv_b_proj, which it makes on request."""

    def __init__(self, copying: bool) -> None:
        self.kv_b_proj = torch.nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)
        self._copying = copying
        self.process_weights_after_loading(torch.bfloat16)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        halves = self.kv_b_proj.weight.detach().split(3)
        self.W_UK_T, self.W_UV = (half.clone() if self._copying else half for half in halves)

    def current(self) -> bool:
        return torch.equal(torch.cat([self.W_UK_T, self.W_UV]), self.kv_b_proj.weight)


class Model(torch.nn.Module):
    def __init__(self, copying: bool = True) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
        for layer in self.layers:
            layer.impl = Attention(copying)
        self.loads = 0

    def attention(self) -> list[Attention]:
        return [layer.impl for layer in self.layers]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        self.loads += 1
        names = set()
        for name, value in weights:
            names.add(name)
            if "kv_b_proj" in name:
                self.attention()[int(name.split(".")[1])].kv_b_proj.weight.data.copy_(value)
        return names


def sent() -> list[tuple[str, torch.Tensor]]:
    return [(f"layers.{layer}.kv_b_proj.weight", torch.randn(6, 4, dtype=torch.bfloat16)) for layer in range(2)]


def test_without_it_the_copies_stay_as_they_were() -> None:
    model = Model()
    model.load_weights(sent())
    assert [attention.current() for attention in model.attention()] == [False, False]


def test_copies_follow_each_sync() -> None:
    model = Model()
    for _ in range(2):
        refresh_copies_on_load(model)
        assert model.load_weights(iter(sent())) == {"layers.0.kv_b_proj.weight", "layers.1.kv_b_proj.weight"}
        assert [attention.current() for attention in model.attention()] == [True, True]
    assert model.loads == 2


def test_copies_follow_in_their_own_memory() -> None:
    model = Model()
    before = [attention.W_UV.data_ptr() for attention in model.attention()]
    refresh_copies_on_load(model)
    model.load_weights(sent())
    assert [attention.W_UV.data_ptr() for attention in model.attention()] == before


def test_they_stay_where_they_lie_when_others_process_them() -> None:
    """verl processes the weights after each sync from v0.7.1 on."""
    model = Model()
    before = [attention.W_UV.data_ptr() for attention in model.attention()]
    refresh_copies_on_load(model)
    model.load_weights(sent())
    for attention in model.attention():
        attention.process_weights_after_loading(torch.bfloat16)
    assert [attention.W_UV.data_ptr() for attention in model.attention()] == before
    assert [attention.current() for attention in model.attention()] == [True, True]


def test_a_load_without_their_source_makes_none() -> None:
    model = Model()
    refresh_copies_on_load(model)
    for attention in model.attention():
        attention.process_weights_after_loading = None  # type: ignore[assignment,method-assign]
    assert model.load_weights([("norm.weight", torch.ones(1))]) == {"norm.weight"}


@pytest.mark.parametrize("model", [Model(copying=False), torch.nn.Linear(2, 2)], ids=["views", "none"])
def test_a_model_without_copies_is_left_alone(model: torch.nn.Module) -> None:
    refresh_copies_on_load(model)
    assert "load_weights" not in vars(model)


class EarlyAttention:
    """MLA in vllm-ascend's engine V0: the copies are made only when they are None, in 0.7.3 by the forward pass."""

    def __init__(self, processes: bool) -> None:
        self.kv_b_proj = torch.nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)
        self.w_kc: torch.Tensor | None = None
        self.w_vc: torch.Tensor | None = None
        if processes:
            self.process_weights_after_loading = self._make
        self._make(torch.bfloat16)

    def _make(self, act_dtype: torch.dtype) -> None:
        if self.w_kc is None or self.w_vc is None:
            self.w_kc, self.w_vc = (half.clone() for half in self.kv_b_proj.weight.detach().split(3))

    def current(self) -> bool:
        if not hasattr(self, "process_weights_after_loading"):
            self._make(torch.bfloat16)
        assert self.w_kc is not None
        assert self.w_vc is not None
        return torch.equal(torch.cat([self.w_kc, self.w_vc]), self.kv_b_proj.weight)


@pytest.mark.parametrize("processes", [False, True], ids=["0.7.3", "0.9.1"])
def test_the_copies_of_the_early_engine_follow_each_sync(processes: bool) -> None:
    model = Model()
    for layer in model.layers:
        layer.impl = EarlyAttention(processes)
    for _ in range(2):
        refresh_copies_on_load(model)
        model.load_weights(sent())
        assert [attention.current() for attention in model.attention()] == [True, True]


class UnquantizedFusedMoEMethod:
    """vLLM's own method, which transposes nothing."""

    transpose: bool | None


class AscendUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """vllm-ascend's method, which is recognized by its name."""


def experts(w13: tuple[int, ...], w2: tuple[int, ...], transpose: bool | None) -> torch.nn.Module:
    layer: Any = torch.nn.Module()
    layer.w13_weight, layer.w2_weight = torch.empty(w13), torch.empty(w2)
    layer.quant_method = UnquantizedFusedMoEMethod() if transpose is None else AscendUnquantizedFusedMoEMethod()
    layer.quant_method.transpose = transpose
    model: Any = torch.nn.Module()
    model.mlp = layer
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("w13", "w2", "named"),
    [
        ((4, 64, 64), (4, 32, 64), r"mlp\.w13_weight: .*\(64, 64\)"),  # hidden is twice the intermediate size
        ((4, 64, 128), (4, 64, 64), r"mlp\.w2_weight: .*\(64, 64\)"),  # hidden is the intermediate size
    ],
)
def test_transposed_square_experts_are_refused_before_anything_is_loaded(
    w13: tuple[int, ...], w2: tuple[int, ...], named: str
) -> None:
    def original(model: Any) -> None:
        pytest.fail("asked for")

    with pytest.raises(WeightSyncError, match=named):
        prepare_vllm_model_for_new_weights(original, experts(w13, w2, transpose=False))


@pytest.fixture
def processing_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a stand-in for a verl that processes the weights after each sync."""
    extension = type("vLLMColocateWorkerExtension", (), {"update_weights_from_ipc": None})
    workers = SimpleNamespace(vLLMColocateWorkerExtension=extension)
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.utils", workers)


@pytest.mark.usefixtures("processing_upstream")
def test_square_experts_that_are_laid_out_before_each_load_pass() -> None:
    square = experts((4, 64, 64), (4, 32, 64), transpose=False)
    del square.mlp.quant_method.transpose
    assert prepare_vllm_model_for_new_weights(lambda model: "prepared", square) == "prepared"


@pytest.mark.usefixtures("processing_upstream")
def test_square_experts_that_vllm_ascends_loader_transposes_are_refused_still() -> None:
    with pytest.raises(WeightSyncError, match="w13_weight"):
        prepare_vllm_model_for_new_weights(lambda model: "asked for", experts((4, 64, 64), (4, 32, 64), False))


@pytest.mark.parametrize(
    ("w13", "w2", "transpose"),
    [
        ((4, 64, 96), (4, 48, 64), False),
        ((4, 64, 64), (4, 64, 32), True),  # not transposed yet
        ((4, 64, 64), (4, 64, 32), None),  # not vllm-ascend's
    ],
)
def test_other_experts_pass(w13: tuple[int, ...], w2: tuple[int, ...], transpose: bool | None) -> None:
    refuse_square_experts(experts(w13, w2, transpose))


def test_upstreams_own_preparation_still_runs() -> None:
    assert prepare_vllm_model_for_new_weights(lambda model: "prepared", torch.nn.Linear(1, 1)) == "prepared"


def transposed_anew(intermediate: int) -> Any:
    """Return experts as vllm-ascend has them from 0.13 on, without a record of whether they are transposed."""
    model = experts((4, 64, 2 * intermediate), (4, intermediate, 64), transpose=False)
    del model.mlp.quant_method.transpose
    for name in ("w13_weight", "w2_weight"):
        weight = torch.nn.Parameter(torch.randn(getattr(model.mlp, name).shape), requires_grad=False)
        weight.weight_loader = "the loader"  # type: ignore[attr-defined]
        delattr(model.mlp, name)
        setattr(model.mlp, name, weight)
    return model


@pytest.mark.parametrize("intermediate", [32, 64, 48], ids=["square w13", "square w2", "none is square"])
def test_transposed_experts_are_laid_out_once_for_the_loader_and_keep_it(intermediate: int) -> None:
    model = transposed_anew(intermediate)
    w13, w2 = model.mlp.w13_weight, model.mlp.w2_weight
    for _ in range(2):
        lay_out_experts_for_loading(model)
    assert torch.equal(model.mlp.w13_weight, w13.transpose(1, 2))
    assert torch.equal(model.mlp.w2_weight, w2.transpose(1, 2))
    assert model.mlp.w13_weight.weight_loader == "the loader"


def test_experts_of_a_vllm_ascend_that_keeps_count_are_left() -> None:
    model: Any = experts((4, 64, 96), (4, 48, 64), transpose=False)
    held = model.mlp.w13_weight
    lay_out_experts_for_loading(model)
    assert model.mlp.w13_weight is held


@pytest.mark.parametrize("freed", [True, False])
def test_a_projection_that_vllm_ascend_has_freed_is_refused(freed: bool) -> None:
    model = Model()
    if freed:
        model.attention()[1].kv_b_proj.weight.data = torch.empty(0, dtype=torch.bfloat16)
    freed_weight = pytest.raises(WeightSyncError, match=r"kv_b_proj of layers\.1.*freed this weight")
    with freed_weight if freed else nullcontext():
        refuse_disposed_projections(model)
