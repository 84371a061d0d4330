"""Activations that upstream offloads, in models that change them in place: its function returns its input."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from verl_npu.features.fused_ops.fsdp2 import let_logits_be_scaled_in_place  # noqa: E402  # after torch


class Commit(torch.autograd.Function):
    """A stand-in for upstream's GroupCommitFunction."""

    @staticmethod
    def forward(ctx, tensor):  # type: ignore[no-untyped-def]
        return tensor

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


def offload(handler: object, module: torch.nn.Module) -> None:
    """Wrap a module's forward as upstream's wrap_module_forward_method does."""
    forward = module.forward
    module.forward = lambda *args: Commit.apply(forward(*args))  # type: ignore[method-assign]


def logits(wrap: Callable[..., None]) -> tuple[torch.Tensor, torch.nn.Linear]:
    layer = torch.nn.Linear(3, 5)
    wrap(layer)
    return layer(torch.ones(1, 2, 3)).squeeze(0), layer


def test_without_it_logits_cannot_be_scaled_in_place() -> None:
    made, _ = logits(lambda layer: offload(None, layer))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        made.div_(2)


def test_logits_are_scaled_in_place_and_their_gradients_are_right() -> None:
    made, layer = logits(lambda layer: let_logits_be_scaled_in_place(offload, None, layer))
    made.div_(2).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.ones(5, 3))


def test_another_module_is_offloaded_as_it_is() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 5))
    let_logits_be_scaled_in_place(offload, None, module)
    with pytest.raises(RuntimeError, match="modified inplace"):
        module(torch.ones(2, 3)).div_(2)
