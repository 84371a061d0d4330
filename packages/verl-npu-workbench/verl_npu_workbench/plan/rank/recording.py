"""Records the cost of one rank's phases with the device's ledger, and marks the holder of each tensor."""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from ..job import SAYS, TOLD, Holder, Phase, PhaseCost, Point, site_of

if TYPE_CHECKING:
    import numpy
    from torch import Tensor, nn
    from torch.optim import Optimizer

_POINTS = 400
"""The number of points of a timeline. A page or a terminal has fewer columns."""
_COPY = "copy between host and NPU"  # csrc/ledger.cpp


def gradients(module: nn.Module) -> Iterator[Tensor]:
    """Yield the gradients that accumulate over micro batches, including those that FSDP has not reduced yet.

    From v0.9.0 on, verl reduces gradients only in the last micro batch of an update. During the earlier micro batches,
    FSDP1 keeps unsharded gradients in its flat parameters, and FSDP2 keeps unsharded gradients in a separate
    attribute. Source: torch/distributed/fsdp/_fully_shard, `FSDPParam.to_accumulated_grad_if_needed`.
    """
    for weight in module.parameters():
        # Megatron keeps gradients in buffers of its own.
        yield from _given(weight, "grad", "main_grad")
    for part in module.modules():
        for sharded in _sharded_parameters(part):
            # Exists if gradients are reduced in another type than they are computed in.
            yield from _given(sharded, "unsharded_accumulated_grad")
            yield from _given(getattr(sharded, "_unsharded_param", None), "grad")


def _given(holder: object, *names: str) -> Iterator[Tensor]:
    for name in names:
        gradient = getattr(holder, name, None)
        if gradient is not None:
            yield gradient


def _sharded_parameters(part: nn.Module) -> Iterator[Any]:
    """Yield FSDP2's own parameter objects of a module that was passed to `fully_shard`."""
    state_of = getattr(part, "_get_fsdp_state", None)
    if state_of is None:
        return
    state = state_of()
    # torch 2.13 has any number of groups, earlier releases at most one.
    several = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if several is None else several:
        if group is not None:
            yield from group.fsdp_params


@dataclass(slots=True)
class _Span:
    """The record of one phase."""

    phase: Phase
    begin: int
    end: int = 0
    root: Any = None
    """The first module that was called in the phase."""
    micro_batches: int = 0
    seconds: float = 0.0
    calls: int = 0
    copied: float = 0.0
    messages: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    optimizer_seconds: float = 0.0
    optimizer_calls: int = 0


class Recording:
    """Records the phases of a rank. After `watch` has been called, torch's global hooks report module calls and
    optimizer steps."""

    def __init__(self, ledger: ModuleType) -> None:
        self._ledger = ledger
        self._spans: list[_Span] = []
        self._open: _Span | None = None
        self._sites: dict[tuple[CodeType, ...], int] = defaultdict(itertools.count().__next__)

    def site(self) -> int:
        """Return the number of the current call stack. The ledger calls this function for each block."""
        called, frame = [], sys._getframe().f_back
        while frame is not None:
            called.append(frame.f_code)
            frame = frame.f_back
        return self._sites[tuple(called)]

    def sites(self) -> dict[str, Sequence[tuple[int, str, int]]]:
        """Return the size, the holder, and the lifetime of the NPU's blocks that were allocated at each site."""
        names = {
            number: site_of((code.co_filename, code.co_name) for code in called)
            for called, number in self._sites.items()
        }
        found: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
        for block in self._ledger.blocks() if names else ():
            if TOLD[block.holder] is not Holder.HOST:
                lifetime = (block.freed or self._ledger.clock() + 1) - block.allocated
                found[names[block.site]][block.size, TOLD[block.holder].value] += lifetime
        return {site: [(*block, lived) for block, lived in blocks.items()] for site, blocks in found.items()}

    @property
    def latest(self) -> Phase:
        """The phase that began last. It is the loading phase if no other phase has begun."""
        return self._spans[-1].phase if self._spans else Phase.LOAD

    def watch(self) -> None:
        """Register torch's global hooks for module calls and optimizer steps. Call this once per process."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_module_forward_pre_hook(lambda module, _: self._called(module))
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before_step(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._after_step(optimizer))

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Record the body of the `with` statement as one phase, and write the start of the phase to the rank's log."""
        print(f"{SAYS}{phase.value}", file=sys.stderr, flush=True)
        self._ledger.take()
        self._open = _Span(phase, self._ledger.clock())
        self._spans.append(self._open)
        try:
            yield
        finally:
            self._take(self._open, of_optimizer=False)
            self._open.end = self._ledger.clock()
            self._open = None

    def costs(self) -> list[PhaseCost]:
        """Return the cost of each phase. If a phase ran more than once, the cost is from the run with the highest
        memory peak."""
        totals, by_holder = self._curves()
        host = by_holder[Holder.HOST.number]
        found: dict[Phase, PhaseCost] = {}
        for span in self._spans:
            curve = totals[span.begin : span.end + 1]
            at = span.begin + int(curve.argmax())
            cost = PhaseCost(
                phase=span.phase.value,
                peak=int(totals[at]),
                after=int(totals[span.end]),
                holders=_held(by_holder, at),
                kept=_held(by_holder, span.end),
                micro_batches=span.micro_batches,
                seconds=span.seconds,
                calls=span.calls,
                copied=span.copied,
                host=int(host[span.begin : span.end + 1].max()),
                host_after=int(host[span.end]),
                messages=[(name, ranks, *sums) for (name, ranks), sums in span.messages.items()],
                optimizer_seconds=span.optimizer_seconds,
                optimizer_calls=span.optimizer_calls,
            )
            before = found.get(span.phase, cost)
            found[span.phase] = replace(cost if cost.peak >= before.peak else before, host=max(cost.host, before.host))
        return list(found.values())

    def timeline(self) -> list[Point]:
        """Return the memory use over time, downsampled to about 400 points. Each point is the peak of its interval."""
        totals, by_holder = self._curves()
        points = []
        length = sum(span.end - span.begin for span in self._spans)
        for span in self._spans:
            steps = max(round(_POINTS * (span.end - span.begin) / max(length, 1)), 2)
            for step in range(steps):
                first = span.begin + (span.end - span.begin) * step // steps
                last = max(span.begin + (span.end - span.begin) * (step + 1) // steps, first + 1)
                at = first + int(totals[first:last].argmax())
                points.append(Point(span.phase.value, _held(by_holder, at)))
        return points

    def _curves(self) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
        """Return the bytes after each allocation and free: the NPU's [times], and by holder [holders, times]."""
        import numpy

        blocks = numpy.array(self._ledger.blocks(), dtype=numpy.int64).reshape(-1, 5)
        sizes, born, died, holders, _ = blocks.T
        changes = numpy.zeros((len(TOLD), self._ledger.clock() + 1), dtype=numpy.int64)
        numpy.add.at(changes, (holders, born), sizes)
        gone = died > 0
        numpy.add.at(changes, (holders[gone], died[gone]), -sizes[gone])
        by_holder = changes.cumsum(axis=1)
        return by_holder.sum(axis=0) - by_holder[Holder.HOST.number], by_holder

    def _called(self, module: nn.Module) -> None:
        span = self._open
        if span is None:
            return
        if span.root is None:
            span.root = module
            for weight in module.parameters():
                self._mark(weight, Holder.WEIGHTS)
        if module is span.root:
            span.micro_batches += 1
            for gradient in gradients(module):
                self._mark(gradient, Holder.GRADIENTS)

    def _before_step(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                self._mark(weight, Holder.WEIGHTS)
                self._mark(weight.grad, Holder.GRADIENTS)
        self._mark_state(optimizer)
        if self._open is not None:
            self._take(self._open, of_optimizer=False)

    def _after_step(self, optimizer: Optimizer) -> None:
        self._mark_state(optimizer)
        if self._open is not None:
            self._take(self._open, of_optimizer=True)

    def _mark_state(self, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                self._mark(value, Holder.OPTIMIZER)

    def _mark(self, tensor: Tensor | None, holder: Holder) -> None:
        local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard
        if local is not None and hasattr(local, "untyped_storage") and local.device.type == "npu":
            self._ledger.mark(local.untyped_storage().data_ptr(), holder.number)

    def _take(self, span: _Span, of_optimizer: bool) -> None:
        work, messages = self._ledger.take()
        for name, calls, _, size, seconds in work:
            if name == _COPY:
                span.copied += size
            elif of_optimizer:
                span.optimizer_seconds += seconds
                span.optimizer_calls += calls
            else:
                span.seconds += seconds
                span.calls += calls
        for name, ranks, calls, size in messages:
            before = span.messages.get((name, ranks), (0, 0.0))
            span.messages[name, ranks] = (before[0] + calls, before[1] + size)


def _held(by_holder: numpy.ndarray[Any, Any], at: int) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for holder, size in zip(TOLD, by_holder[:, at], strict=True):
        if size and holder is not Holder.HOST:
            found[holder.value] = int(size)
    return dict(found)
