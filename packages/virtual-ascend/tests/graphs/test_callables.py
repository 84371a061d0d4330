"""Callables whose forward and backward passes are graphs compute the same as before."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def new(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="npu").requires_grad_(grad)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_a_module_answers_and_learns_as_without_graphs(ascend: ModuleType) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).npu()
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).npu()
    plain.load_state_dict(module.state_dict())
    graphed = ascend.npu.make_graphed_callables(module, (new(3, 8, grad=True),))
    assert graphed is module
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (graphed, plain)]
    for _ in range(3):
        x, losses, gradients = torch.randn(3, 8), [], []
        for each, optimiser in zip((graphed, plain), optimisers, strict=True):
            given = x.npu().requires_grad_()
            loss = each(given).pow(2).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            gradients.append(given.grad)
        assert losses[0] == pytest.approx(losses[1])
        assert torch.allclose(*gradients)
    for one, other in zip(graphed.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other)


def test_a_module_in_the_other_mode_is_not_replayed(ascend: ModuleType) -> None:
    module = torch.nn.Dropout(1.0).npu()
    graphed = ascend.npu.make_graphed_callables(module, (new(2, 2, grad=True),))
    assert graphed(torch.ones(2, 2, device="npu")).abs().sum().item() == 0
    assert graphed.eval()(torch.ones(2, 2, device="npu")).sum().item() == 4


def test_functions_are_captured_in_their_order_and_return_what_they_did(ascend: ModuleType) -> None:
    def first(x: Any) -> Any:
        return {"doubled": x * 2, "sign": x.detach().sign()}

    def second(x: Any, y: Any) -> Any:
        return x @ y

    samples = ((new(2, 3, grad=True),), (new(2, 3, grad=True), new(3, 2)))
    one, two = ascend.npu.make_graphed_callables((first, second), samples)
    x, y = new(2, 3, grad=True), new(3, 2)
    made = one(x)
    out = two(made["doubled"], y)
    assert torch.equal(out, (x * 2) @ y)
    assert torch.equal(made["sign"], x.sign())
    assert (made["doubled"].requires_grad, made["sign"].requires_grad) == (True, False)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(gradient, 2 * torch.ones(2, 2, device="npu") @ y.T)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("hooks", "must not have hooks"),
        ("buffers", "only parameters may be trainable"),
        ("arguments", "must contain only Tensors"),
        ("autocast", "does not support the autocast caching"),
    ],
)
def test_what_it_does_not_take_is_refused(ascend: ModuleType, what: str, said: str) -> None:
    module, sample = torch.nn.Linear(2, 2).npu(), (new(2, 2),)
    if what == "hooks":
        module.register_forward_hook(lambda *_: None)
    if what == "buffers":
        module.register_buffer("extra", new(2, grad=True))
    with pytest.raises(RuntimeError, match=said), torch.autocast("npu", enabled=what == "autocast"):
        ascend.npu.make_graphed_callables(module, ("one",) if what == "arguments" else sample)
