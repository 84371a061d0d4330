"""`make_graphed_callables`: functions and modules whose forward and backward are graphs.

It accepts and rejects the same arguments as torch's function. torch_npu has a copy of that function
(torch_npu/npu/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import TreeSpec, arg_tree_leaves, tree_flatten, tree_unflatten

from torch_npu.npu.autocast_utils import is_autocast_enabled
from torch_npu.npu.device import synchronize
from torch_npu.npu.graphs import NPUGraph, Pool, graph, graph_pool_handle
from torch_npu.npu.streams import Stream, stream

Called = Callable[..., object]
Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


def make_graphed_callables(
    callables: Called | tuple[Called, ...],
    sample_args: Sequence[object],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> object:
    """Capture the forward passes and the backward passes of callables that run one after the other.

    Returns:
        For each function, a function that replays the captured passes. For each module, the same module, whose forward
            method replays the captured passes.

    Raises:
        RuntimeError: autocast uses a cache, a module has hooks or trainable buffers, or an argument is not a tensor.
    """
    if is_autocast_enabled() and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    several = isinstance(callables, tuple)
    given: tuple[Called, ...] = callables if isinstance(callables, tuple) else (callables,)
    samples = list(sample_args) if several else [sample_args]
    made = [_Captured.of(each, args) for each, args in zip(given, samples, strict=True)]  # type: ignore[arg-type]
    shared = graph_pool_handle() if pool is None else pool
    synchronize()
    with stream(Stream()):
        for captured in made:
            captured.warm_up(num_warmup_iters, allow_unused_input)
    synchronize()
    for captured in made:
        captured.capture_forward(shared)
    for captured in reversed(made):
        captured.capture_backward(shared, allow_unused_input)
    ready = tuple(_offered(each, captured) for each, captured in zip(given, made, strict=True))
    return ready if several else ready[0]


@dataclass(slots=True)
class _Captured:
    """A callable, and the memory that its graphs read and write."""

    called: Called
    args: Sequence[object]
    inputs: Tensors
    """The arguments, then the parameters."""
    count: int
    """The number of arguments among them."""
    forward: NPUGraph
    backward: NPUGraph
    outputs: Tensors = ()
    spec: TreeSpec | None = None
    incoming: Gradients = ()
    """The memory for the gradients of the outputs."""
    outgoing: Gradients = ()
    """The gradients of the inputs."""

    @classmethod
    def of(cls, called: Called, args: Sequence[object]) -> _Captured:
        parameters: Tensors = ()
        if isinstance(called, torch.nn.Module):
            _check(called)
            parameters = tuple(called.parameters())
        leaves = arg_tree_leaves(*args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise RuntimeError(
                "In the beta API, sample_args for each callable must contain only Tensors. Other types are not "
                "allowed."
            )
        return cls(called, args, (*leaves, *parameters), len(leaves), NPUGraph(), NPUGraph())

    def warm_up(self, times: int, unused: bool) -> None:
        for _ in range(times):
            outputs = tuple(tree_flatten(self.called(*self.args))[0])
            incoming = tuple(torch.empty_like(each) if each.requires_grad else None for each in outputs)
            self._differentiated(outputs, incoming, unused)

    def capture_forward(self, pool: Pool) -> None:
        with graph(self.forward, pool=pool):
            result = self.called(*self.args)
        leaves, self.spec = tree_flatten(result)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: Pool, unused: bool) -> None:
        self.incoming = tuple(torch.empty_like(each) if each.requires_grad else None for each in self.outputs)
        with graph(self.backward, pool=pool):
            found = iter(self._differentiated(self.outputs, self.incoming, unused))
        self.outgoing = tuple(next(found, None) if each.requires_grad else None for each in self.inputs)

    def _differentiated(self, outputs: Tensors, incoming: Gradients, unused: bool) -> Gradients:
        wanted = [(each, gradient) for each, gradient in zip(outputs, incoming, strict=True) if gradient is not None]
        sources = tuple(each for each in self.inputs if each.requires_grad)
        if not wanted or not sources:
            return ()
        of = [each for each, _ in wanted]
        found: Gradients = torch.autograd.grad(of, sources, [each for _, each in wanted], allow_unused=unused)
        return found

    def __call__(self, *args: object) -> object:
        leaves = arg_tree_leaves(*args)
        outputs = _Replayed.apply(self, *leaves, *self.inputs[self.count :])
        if self.spec is None:
            raise RuntimeError("nothing was captured")
        return tree_unflatten(list(outputs), self.spec)


class _Replayed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, captured: _Captured, *inputs: torch.Tensor) -> Tensors:
        ctx.captured = captured
        for place, given in zip(captured.inputs[: captured.count], inputs, strict=False):
            if place.data_ptr() != given.data_ptr():
                place.copy_(given)
        captured.forward.replay()
        out = tuple(each.detach() for each in captured.outputs)
        pairs = zip(out, captured.outputs, strict=True)
        ctx.mark_non_differentiable(*(made for made, each in pairs if not each.requires_grad))
        return out

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[object, ...]:
        captured: _Captured = ctx.captured
        for place, given in zip(captured.incoming, gradients, strict=True):
            if place is not None and place.data_ptr() != given.data_ptr():
                place.copy_(given)
        captured.backward.replay()
        return None, *(None if each is None else each.detach() for each in captured.outgoing)


def _check(module: torch.nn.Module) -> None:
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise RuntimeError(
            "Modules must not have hooks registered at the time they are passed. However, registering hooks on "
            "modules after passing them through make_graphed_callables is allowed."
        )
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise RuntimeError(
            "In any :class:`~torch.nn.Module` passed to :func:`~make_graphed_callables`, only parameters may be "
            "trainable. All buffers must have ``requires_grad=False``."
        )


def _offered(called: Called, captured: _Captured) -> object:
    if not isinstance(called, torch.nn.Module):
        return captured
    training, original = called.training, called.forward

    def forward(*args: object, **options: object) -> object:
        # The graph was captured in one mode. In the other mode the module computes something else.
        return captured(*args) if called.training == training else original(*args, **options)

    called.forward = forward
    return called
