"""Operators that use as much memory as a single real kernel.

They save the same tensors as the real kernel. Intermediate results are computed here, too, but their memory is not
charged to the NPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..device import extension
from . import captures

_OPTIONS = 4  # the number of _Fused's arguments before the tensors
_ALL = slice(None)
_BACKWARD = 2.5
"""The gradient takes five matrix products where the result takes two."""
Given: TypeAlias = "Tensor | None"
Compute: TypeAlias = "Callable[..., tuple[Tensor, ...]]"


@dataclass(frozen=True, slots=True)
class Result:
    """The shape and dtype of one result of a fused operator."""

    shape: Sequence[int]
    dtype: torch.dtype


class _Context(Protocol):
    """The state that torch.autograd.Function keeps from forward to backward."""

    compute: Compute
    given: int
    cost: tuple[str, float]
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Given, ...]

    def save_for_backward(self, *tensors: Given) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


def is_fusible(tensors: Sequence[Given]) -> bool:
    """Return whether all tensors are plain tensors on a virtual NPU, and FX is not tracing.

    Other tensors (DTensor, FakeTensor, and the tensors of torch.func) and FX do not support fused operators. They
    support only the operators that a fused operator is composed of.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return False
    return extension.is_loaded() and all(
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "npu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in given
    )


def fused(
    name: str,
    compute: Compute,
    results: Sequence[Result],
    tensors: Sequence[Given],
    *,
    keep: slice = _ALL,
    instead: int | None = None,
    flops: float = 0.0,
) -> tuple[Tensor, ...]:
    """Compute `results`. The first result is differentiable in `tensors`.

    Args:
        name: the operator's name in the ledger (csrc/ledger.h).
        compute: a function that computes the results from the same tensors on the host. At least the first result must
            be differentiable. The function is not called if one of the tensors is a phantom.
        results: the shapes and dtypes of the results, which are contiguous.
        tensors: the arguments, which are saved for the gradient.
        keep: the results that are also saved for the gradient.
        instead: the index of a result to save instead of the first argument, if the gradient can be computed from that
            result, too.
        flops: the number of floating-point operations that an NPU performs for the operator.
    """
    found: tuple[Tensor, ...] = _Fused.apply((name, flops), compute, tuple(results), (keep, instead), *tensors)
    return found


def computed(
    name: str, compute: Compute, results: Sequence[Result], tensors: Sequence[Given], *, flops: float = 0.0
) -> tuple[Tensor, ...]:
    """Compute `results` like `fused`, but without a gradient."""
    like = next(tensor for tensor in tensors if tensor is not None)
    made = tuple(torch.empty(tuple(result.shape), dtype=result.dtype, device=like.device) for result in results)
    if _have_values([*tensors, *made]):
        # Some results are needed only by the gradient on a real NPU. They are not computed.
        def fill(arguments: Sequence[Given], results: Sequence[Tensor]) -> None:
            for result, host in zip(results, compute(*map(_host, arguments)), strict=False):
                _fill(result, host)

        captures.call(name, fill, {"arguments": list(tensors), "results": list(made)})
    else:
        _check_mapped(tensors)
        for result in made:
            result.zero_()
    extension.extension().work_in_ledger(name, flops, _size((*tensors, *made)))
    return made


def flops_of(heads: int, queries: int, keys: int, width: int, is_causal: bool) -> float:
    """Return the number of floating-point operations in the two matrix products of attention. Causal attention
    computes only half of the scores."""
    return 4.0 * heads * queries * keys * width / (2 if is_causal else 1)


class _Fused(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: _Context,
        cost: tuple[str, float],
        compute: Compute,
        results: tuple[Result, ...],
        saving: tuple[slice, int | None],
        *tensors: Given,
    ) -> tuple[Tensor, ...]:
        name, flops = ctx.cost = cost
        made = computed(name, compute, results, tensors, flops=flops)
        keep, instead = saving
        ctx.compute, ctx.given = compute, len(tensors)
        first = tensors[0] if instead is None else made[instead]
        ctx.save_for_backward(first, *tensors[1:], *made[keep])
        ctx.mark_non_differentiable(*made[1:])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: _Context, gradient: Given, *others: Given) -> tuple[Given, ...]:
        # Activation recomputation allows unpacking them only once.
        saved = ctx.saved_tensors
        tensors = saved[: ctx.given]
        wanted = [number for number in range(ctx.given) if ctx.needs_input_grad[_OPTIONS + number]]
        gradients: list[Given] = [None] * (_OPTIONS + ctx.given)
        if gradient is None:
            return tuple(gradients)
        for number in wanted:
            gradients[_OPTIONS + number] = torch.zeros_like(tensors[number], memory_format=torch.contiguous_format)
        name, flops = ctx.cost
        extension.extension().work_in_ledger(
            f"{name} backward", _BACKWARD * flops, _size((*saved, gradient, *gradients))
        )
        if not _have_values([*tensors, gradient]):
            return tuple(gradients)
        captures.call(
            f"{name} backward",
            functools.partial(_differentiate, ctx.compute, wanted),
            {"arguments": list(tensors), "gradient": gradient, "results": gradients[_OPTIONS:]},
        )
        return tuple(gradients)


def _differentiate(
    compute: Compute, wanted: Sequence[int], arguments: Sequence[Given], gradient: Tensor, results: Sequence[Given]
) -> None:
    """Compute the gradients of the `wanted` arguments and write them into `results`."""
    with torch.inference_mode(False), torch.enable_grad():  # a replay is in inference mode
        hosts = [_host(tensor) for tensor in arguments]
        leaves = {number: hosts[number].detach().requires_grad_() for number in wanted}  # type: ignore[union-attr]
        out = compute(*(leaves.get(number, host) for number, host in enumerate(hosts)))[0]
        found = torch.autograd.grad(out, list(leaves.values()), _host(gradient), allow_unused=True)
    for number, host in zip(leaves, found, strict=True):
        if host is not None:
            _fill(results[number], host)


def _size(tensors: Sequence[Given]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _have_values(tensors: Sequence[Given]) -> bool:
    return not any(extension.extension().is_phantom(tensor) for tensor in tensors if tensor is not None)


def _check_mapped(tensors: Sequence[Given]) -> None:
    """Raise RuntimeError if the memory of a tensor is unmapped by sleep mode, as reading its values would."""
    for tensor in tensors:
        if tensor is not None:
            extension.extension().check_mapped(tensor.untyped_storage().data_ptr())


def _host(tensor: Given) -> Given:
    return None if tensor is None else extension.extension().cpu_alias(tensor.detach())


def _fill(result: Given, host: Tensor) -> None:
    alias = _host(result)
    if alias is not None:
        alias.copy_(host)
