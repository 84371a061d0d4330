"""LSTM, GRU and RNN on an NPU, where ATen uses other operators for their cells than on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_network_and_its_gradients_are_the_cpus(npu: ModuleType, kind: str, bias: bool) -> None:
    npu.manual_seed(0)
    host = getattr(npu.nn, kind)(5, 7, num_layers=2, bias=bias, bidirectional=True)
    device = getattr(npu.nn, kind)(5, 7, num_layers=2, bias=bias, bidirectional=True).npu()
    device.load_state_dict(host.state_dict())
    x = npu.randn(4, 3, 5)
    gradients: list[list[Any]] = []
    for model, value in ((host, x.clone().requires_grad_()), (device, x.npu().requires_grad_())):
        out, _ = model(value)
        out.square().sum().backward()
        gradients.append([out.detach(), value.grad, *(parameter.grad for parameter in model.parameters())])
    for theirs, ours in zip(*gradients, strict=True):
        npu.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_a_cell_has_its_first_and_second_derivatives(npu: ModuleType, kind: str) -> None:
    npu.manual_seed(0)
    cell = getattr(npu.nn, kind)(3, 4, device="npu", dtype=npu.float64)
    x, *states = (
        npu.randn(2, n, device="npu", dtype=npu.float64, requires_grad=True)
        for n in ((3, 4, 4) if kind == "LSTMCell" else (3, 4))
    )

    def run(value: Any, *state: Any) -> Any:
        return cell(value, state if kind == "LSTMCell" else state[0])

    assert npu.autograd.gradcheck(run, (x, *states))
    assert npu.autograd.gradgradcheck(run, (x, *states))


def test_half_precision_is_rounded_once(npu: ModuleType) -> None:
    npu.manual_seed(0)
    cell = npu.nn.LSTMCell(64, 64, device="npu", dtype=npu.bfloat16)
    x = npu.randn(8, 64, device="npu", dtype=npu.bfloat16)
    h, c = cell(x)
    exact = npu.nn.LSTMCell(64, 64, device="npu")
    exact.load_state_dict({name: value.float() for name, value in cell.state_dict().items()})
    for ours, theirs in zip((h, c), exact(x.float()), strict=True):
        npu.testing.assert_close(ours.float(), theirs, rtol=1e-2, atol=1e-2)
