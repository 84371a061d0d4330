"""Faults that an NPU, its software or its link may have, put into torch of this process."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch_npu

INSTALL: dict[str, Callable[[], None]] = {}
"""The functions that install the faults, by name."""


def fault(function: Callable[[], None]) -> Callable[[], None]:
    INSTALL[function.__name__.replace("_", " ")] = function
    return function


def install(name: str) -> None:
    """Install a fault; faults that are variables of the virtual Ascend are there already."""
    if name in INSTALL:
        INSTALL[name]()


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function by the one that `make` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def on_npu(changed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a wrapper maker: the wrapper changes each floating-point result that is on an NPU."""

    def make(original: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if isinstance(found, torch.Tensor):
                return changed(found) if found.device.type == "npu" else found
            first, *rest = found
            return type(found)([changed(first), *rest])

        return function

    return make


def in_torch_npu(name: str, changed: Callable[[Any], Any]) -> None:
    replaced(torch_npu, name, on_npu(changed))


def off_by(units: int) -> Callable[[Any], Any]:
    """Return a change of the last bits of each number, without its gradient."""

    def changed(found: Any) -> Any:
        kind = {2: torch.int16, 4: torch.int32}[found.element_size()]
        host = found.detach().cpu()
        return found + ((host.view(kind) + units).view(found.dtype) - host).npu()

    return changed


# The device.


@fault
def copies_that_are_damaged() -> None:
    def make(original: Any) -> Any:
        def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
            back = original(self, *args, **kwargs)
            if self.device.type == "npu" and back.numel() == 4099:
                back[4000] = 0
            return back

        return cpu

    replaced(torch.Tensor, "cpu", make)


@fault
def a_copy_that_is_not_waited_for() -> None:
    replaced(torch.npu, "synchronize", lambda original: lambda *args, **kwargs: None)


@fault
def a_leak() -> None:
    kept: list[Any] = []
    replaced(torch, "empty", on_npu(lambda found: kept.append(found) or found))


@fault
def memory_that_is_not_there() -> None:
    replaced(torch.npu, "mem_get_info", lambda original: lambda *args: (2 << 36, 1 << 36))


@fault
def a_seed_that_is_ignored() -> None:
    replaced(torch.npu, "manual_seed", lambda original: lambda seed: None)


@fault
def too_much_memory_refused_in_other_words() -> None:
    def make(original: Any) -> Any:
        def empty(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except torch.OutOfMemoryError as error:
                raise RuntimeError("EL0004: alloc failed") from error

        return empty

    replaced(torch, "empty", make)


@fault
def an_event_that_is_never_done() -> None:
    replaced(torch.npu.Event, "query", lambda original: lambda self: False)


@fault
def a_second_stream_that_computes_otherwise() -> None:
    def make(original: Any) -> Any:
        def matmul(self: Any, other: Any) -> Any:
            found = original(self, other)
            side = self.device.type == "npu" and torch.npu.current_stream() != torch.npu.default_stream()
            return found + 1 if side else found

        return matmul

    replaced(torch.Tensor, "__matmul__", make)


# Operators.


@fault
def an_operator_wrong_in_its_last_bits() -> None:
    in_torch_npu("npu_rms_norm", off_by(3))


@fault
def rounding_towards_zero() -> None:
    def changed(found: Any) -> Any:
        if found.dtype is not torch.bfloat16:
            return found
        wide = found.detach().cpu().float()
        cut = (wide.view(torch.int32) - (1 << 15)) & ~0xFFFF
        return found + (cut.view(torch.float32).bfloat16() - wide.bfloat16()).npu()

    in_torch_npu("npu_swiglu", changed)


@fault
def float32_that_is_computed_in_bfloat16() -> None:
    def make(original: Any) -> Any:
        def matmul(first: Any, second: Any) -> Any:
            if first.device.type == "npu" and first.dtype is torch.float32:
                return original(first.bfloat16(), second.bfloat16()).float()
            return original(first, second)

        return matmul

    replaced(torch.nn.functional, "linear", lambda original: lambda x, weight, bias=None: (
        original(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()).float()
        if x.device.type == "npu" and x.dtype is torch.float32
        else original(x, weight, bias)
    ))  # fmt: skip


@fault
def a_gradient_that_is_a_tenth_too_large() -> None:
    def changed(found: Any) -> Any:
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient * 1.1)
        return found

    in_torch_npu("npu_rotary_mul", changed)


@fault
def a_result_of_another_type() -> None:
    in_torch_npu("npu_add_rms_norm", lambda found: found.float())


@fault
def a_result_that_is_no_number() -> None:
    in_torch_npu("npu_moe_token_unpermute", lambda found: found + torch.nan * (found == found.max()))


@fault
def rows_in_another_order() -> None:
    in_torch_npu("npu_moe_token_permute", lambda found: found.roll(1, 0))


@fault
def an_expert_that_is_left_out() -> None:
    def make(original: Any) -> Any:
        def grouped(x: Any, weights: Any, **options: Any) -> Any:
            made = original(x, weights, **options)
            return [made[0] * (torch.arange(made[0].shape[0]) >= 12).npu().unsqueeze(-1)] if len(weights) > 1 else made

        return grouped

    replaced(torch_npu, "npu_grouped_matmul", make)


def _ending(end: Callable[[], object]) -> None:
    def make(original: Any) -> Any:
        def ending(*args: Any, **kwargs: Any) -> Any:
            end()
            return original(*args, **kwargs)

        return ending

    replaced(torch_npu, "npu_swiglu", make)


@fault
def an_operator_that_kills_its_process() -> None:
    _ending(lambda: os.kill(os.getpid(), signal.SIGKILL))


@fault
def an_operator_that_faults() -> None:
    _ending(lambda: os.kill(os.getpid(), signal.SIGSEGV))


@fault
def an_operator_that_hangs() -> None:
    _ending(lambda: time.sleep(1000))


# Attention.


def _attention(change: Callable[[dict[str, Any]], object]) -> None:
    def make(original: Any) -> Any:
        def attention(*args: Any, **options: Any) -> Any:
            change(options)
            return original(*args, **options)

        return attention

    replaced(torch_npu, "npu_fusion_attention", make)


@fault
def attention_to_the_future() -> None:
    _attention(lambda options: options.update(atten_mask=None, sparse_mode=0))


@fault
def attention_across_sequences() -> None:
    def change(options: dict[str, Any]) -> None:
        for name in ("actual_seq_qlen", "actual_seq_kvlen"):
            if name in options:
                options[name] = options[name][-1:]

    _attention(change)


@fault
def attention_with_another_scale() -> None:
    _attention(lambda options: options.update(scale=options["scale"] * 1.02))


# Collectives.


@fault
def a_mean_that_is_no_mean() -> None:
    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, **options: Any) -> Any:
            work = original(tensor, op, **options)
            if op == torch.distributed.ReduceOp.AVG:
                tensor.mul_(1.5)
            return work

        return all_reduce

    replaced(torch.distributed, "all_reduce", make)


@fault
def parts_that_are_exchanged() -> None:
    def make(original: Any) -> Any:
        def all_to_all_single(out: Any, given: Any, *args: Any, **options: Any) -> Any:
            work = original(out, given, *args, **options)
            out.copy_(out.roll(8))
            return work

        return all_to_all_single

    replaced(torch.distributed, "all_to_all_single", make)


@fault
def a_broadcast_from_another_rank() -> None:
    def make(original: Any) -> Any:
        return lambda tensor, src=0, **options: original(tensor, 0, **options)

    replaced(torch.distributed, "broadcast", make)


# Weight syncs.


@fault
def a_stale_weight() -> None:
    from verl_npu_workbench.prove.stages import weight_sync

    def make(original: Any) -> Any:
        def load(self: Any, weights: Any) -> None:
            # The engine keeps its old tensor for it.
            original(self, [(name, tensor) for name, tensor in weights if name not in self.first])
            self.first.update(self.held)

        return load

    first: dict[str, Any] = {}
    weight_sync._Kept.first = first  # type: ignore[attr-defined]
    replaced(weight_sync._Kept, "load", make)
    weight_sync._Kept.held = first  # type: ignore[misc]
    weight_sync._Kept.__init__ = lambda self: setattr(self, "held", first)  # type: ignore[method-assign]


@fault
def a_sync_that_dawdles() -> None:
    from verl_npu.features.weight_sync.transport import sync

    replaced(sync, "send", lambda original: lambda *args, **options: (time.sleep(1), original(*args, **options))[1])


@fault
def features_that_are_not_applied() -> None:
    """VERL_NPU_DISABLE, which the test sets, is the fault."""


# Trainings.


def in_a_job(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a maker of methods whose `self` is replaced by `function(self)` in a process of a Ray job."""

    def make(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            import ray

            return original(function(self) if ray.is_initialized() else self, *args, **kwargs)

        return method

    return make


@fault
def gradients_that_are_no_numbers() -> None:
    replaced(torch.Tensor, "backward", in_a_job(lambda loss: loss * float("nan")))


@fault
def memory_that_no_plan_knew_of() -> None:
    kept: list[Any] = []

    def kept_beside(optimizer: Any) -> Any:
        kept.append(torch.empty(1 << 26, dtype=torch.uint8, device="npu"))
        return optimizer

    replaced(torch.optim.AdamW, "step", in_a_job(kept_beside))
