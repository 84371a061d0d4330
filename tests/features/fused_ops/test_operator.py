"""The choice of torch_npu's operators: only those that exist and that compute the wanted gradients are used."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from verl_npu.features.fused_ops import operator

ON_NPU = SimpleNamespace(device=SimpleNamespace(type="npu"), numel=lambda: 4)


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    module = ModuleType("torch_npu")
    module.__version__ = "2.5.1.post1"
    module.npu_moe_token_permute = module.npu_swiglu = lambda *args: args
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


def test_an_operator_that_is_there_is_used(torch_npu: ModuleType) -> None:
    assert operator("npu_swiglu", ON_NPU) is torch_npu.npu_swiglu


def test_an_operator_that_is_missing_is_said_and_not_used(torch_npu: ModuleType, capfd) -> None:
    assert operator("npu_rms_norm", ON_NPU) is None
    assert "has no npu_rms_norm" in capfd.readouterr().err


def test_an_operator_whose_gradient_this_torch_npu_leaves_out_is_not_used_in_training(
    torch_npu: ModuleType, capfd
) -> None:
    assert operator("npu_moe_token_permute", ON_NPU) is None
    assert "does not compute the gradient of npu_moe_token_permute" in capfd.readouterr().err


def test_it_is_used_where_no_gradient_is_wanted(torch_npu: ModuleType) -> None:
    import torch

    with torch.no_grad():
        assert operator("npu_moe_token_permute", ON_NPU) is torch_npu.npu_moe_token_permute


def test_a_later_torch_npu_computes_it(torch_npu: ModuleType) -> None:
    torch_npu.__version__ = "2.7.1"
    assert operator("npu_moe_token_permute", ON_NPU) is torch_npu.npu_moe_token_permute
