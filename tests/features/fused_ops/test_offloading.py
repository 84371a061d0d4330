"""Activations that upstream offloads, in models that change them in place: its function returns what it got."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from verl_npu.features.fused_ops.offloading import (  # noqa: E402  # after torch
    let_deepstack_change_offloaded_activations,
    let_logits_be_scaled_in_place,
)


class Commit(torch.autograd.Function):
    """As upstream's GroupCommitFunction."""

    @staticmethod
    def forward(ctx, tensor):  # type: ignore[no-untyped-def]
        return tensor

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


def offload(handler: object, module: torch.nn.Module) -> None:
    """As upstream's wrap_module_forward_method."""
    forward = module.forward
    module.forward = lambda *args: Commit.apply(forward(*args))  # type: ignore[method-assign]


def run(handler: object, module: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """As upstream's forward of a layer that returns a tuple."""
    return Commit.apply(module.linear(x)), "more"


class Qwen3VLTextDecoderLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)


class FSDPQwen3VLTextDecoderLayer(Qwen3VLTextDecoderLayer):
    """FSDP2 puts its own name before the class's."""


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


@pytest.mark.parametrize("kind", [Qwen3VLTextDecoderLayer, FSDPQwen3VLTextDecoderLayer])
def test_images_are_added_in_place_to_a_layers_result(kind: type[Qwen3VLTextDecoderLayer]) -> None:
    layer = kind()
    result, more = let_deepstack_change_offloaded_activations(run, None, layer, torch.ones(2, 3))
    result[0] += 1
    result.sum().backward()
    assert more == "more"
    torch.testing.assert_close(layer.linear.weight.grad, torch.full((5, 3), 2.0))


def test_without_it_they_cannot_be() -> None:
    result, _ = run(None, Qwen3VLTextDecoderLayer(), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="modified inplace"):
        result[0] += 1


def test_inference_copies_nothing() -> None:
    given = torch.ones(2)
    found = let_deepstack_change_offloaded_activations(lambda *_: given, None, Qwen3VLTextDecoderLayer().eval())
    assert found is given
