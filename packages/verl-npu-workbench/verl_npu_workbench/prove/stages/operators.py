"""Checks operators in each dtype, forward and backward, against float64 on the host. It also records rejected calls
and durations."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...processes import captured, own_python
from ..corpus import Key, Kind, Observation, Result
from ..record import NotPossible, Wrong, described, read
from .cases import Case, cases
from .setup import Setup
from .units import Distance, distance, result_of

if TYPE_CHECKING:
    from torch import Tensor

_WIDEST = 8192
_LONG = 0.03
"""A duration in seconds. After a call that takes longer, no larger call is timed."""
_MOST_DEATHS = 20
_MEANING = "numbers of {used_by} would be wrong"


def run(setup: Setup) -> None:
    """Check each case in each of its dtypes. Then record the responses to unusual calls, which the operators may
    reject. Finally, record the run times."""
    setup.npus()
    import torch

    torch.npu.set_device(0)
    for case in cases():
        for dtype in case.dtypes:
            meaning = _MEANING.format(used_by=case.used_by)
            setup.record.check(f"{case.name} {dtype}", partial(judge, setup, case, dtype), meaning)
    _refusals(setup)
    for seen in _timed():
        setup.record.observe(seen)


def judge(setup: Setup, case: Case, dtype: str) -> str | tuple[str, dict[str, float]]:
    """Compare one call's results and gradients with a float64 reference, and record the results."""
    import torch_npu

    given = case.made(dtype)
    exact = computed(case.formula, _wide(given), case.gradients)
    host = computed(case.formula, given, case.gradients)
    try:
        found = computed(lambda *there: case.on_npu(torch_npu, there), [each.npu() for each in given], case.gradients)
    except AttributeError as error:
        raise NotPossible(f"this torch_npu has no {case.operator}") from error
    except RuntimeError as error:
        _observe(setup, case, dtype, said=described(error))
        if case.otherwise:
            raise NotPossible(f"the operator rejected the call ({described(error)}); {case.otherwise}") from error
        raise
    results, over, largest, cpus = [], [], 0.0, 0.0
    for (name, its), (_, cpu), (_, true) in zip(found, host, exact, strict=True):
        if its.dtype != cpu.dtype or its.shape != cpu.shape:
            over.append(f"{name} is {its.dtype}{list(its.shape)}, torch's is {cpu.dtype}{list(cpu.shape)}")
            continue
        away, own = distance(its, true), distance(cpu, true)
        largest, cpus = max(largest, away.largest), max(cpus, own.largest)
        results.append(result_of(name, its, _units(away, own)))
        if said := away.within(own):
            over.append(f"{name}: {said}")
    _observe(setup, case, dtype, results)
    figures = {"units of the last place, NPU": largest, "units of the last place, CPU": cpus}
    if over:
        raise Wrong(
            "; ".join(over),
            "an error about as large as the CPU's error in the same dtype (both relative to the float64 result)",
            figures,
        )
    return (
        f"{len(results)} results, at most {largest:.3g} units of the last place from float64 (CPU: {cpus:.3g})",
        figures,
    )


def computed(
    formula: Callable[..., Tensor | Sequence[Tensor]], given: Sequence[Tensor], gradients: bool
) -> list[tuple[str, Tensor]]:
    """Return the results of a call and the gradients of a weighted sum of these results, as pairs of name and
    tensor."""
    import torch

    if gradients:
        given = [each.detach().requires_grad_(each.is_floating_point()) for each in given]
    made = formula(*given)
    outputs = [made] if isinstance(made, torch.Tensor) else list(made)
    results = [("result" if len(outputs) == 1 else f"result {place}", each) for place, each in enumerate(outputs)]
    leaves = [(place, each) for place, each in enumerate(given) if each.requires_grad]
    if gradients and leaves:
        weights = [_weights(each, place) for place, each in enumerate(outputs)]
        found = torch.autograd.grad(outputs, [each for _, each in leaves], weights)
        results += [(f"gradient {place}", each) for (place, _), each in zip(leaves, found, strict=True)]
    return [(name, each.detach()) for name, each in results]


def _weights(like: Tensor, seed: int) -> Tensor:
    import torch

    # Multiples of 1/8, which every type can hold, so that all types use the same weights.
    drawn = torch.randint(-8, 9, like.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn / 8).to(like.dtype).to(like.device)


def _wide(given: Sequence[Tensor]) -> list[Tensor]:
    return [each.double() if each.is_floating_point() else each for each in given]


def _units(away: Distance, own: Distance) -> dict[str, float]:
    found = {"largest": away.largest, "mean": away.mean, "lean": away.lean, "CPU's largest": own.largest}
    return {name: value for name, value in found.items() if value < float("inf")}


def _observe(setup: Setup, case: Case, dtype: str, results: Sequence[Result] = (), said: str = "") -> None:
    made = Observation(key=Key(Kind.OPERATOR, case.name, dtype), said=said, results=tuple(results))
    setup.record.observe(made)


# Refusals.


def _refusals(setup: Setup) -> None:
    """Run unusual calls and record their results. The calls run in a separate process, because a call may crash it."""
    record = setup.scratch / "refusals.jsonl"
    deaths: dict[str, str] = {}
    while len(deaths) < _MOST_DEATHS and setup.left > 0:
        words = ("refusals", str(record), str(setup.scratch), "1", f"{max(setup.left, 1.0):.1f}")
        # Its output is captured and dropped: these calls are meant to fail.
        done = captured(own_python("-m", "verl_npu_workbench.prove.stages", *words, *deaths))
        recorded = read(record)
        for seen in recorded.observations:
            setup.record.observe(seen)
        if done.returncode == 0:
            return
        if not recorded.beginning or recorded.beginning in deaths:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise RuntimeError(f"the process that tests unusual calls exited with status {done.returncode}: {last}")
        deaths[recorded.beginning] = ended = _end(done.returncode)
        name, case = json.loads(recorded.beginning)
        setup.record.observe(Observation(key=Key(Kind.OPERATOR, name, case), said=ended))


def _end(status: int) -> str:
    return f"it ends the process: {signal.Signals(-status).name if status < 0 else f'status {status}'}"


# Times.


def _timed() -> Iterator[Observation]:
    import torch

    functional = torch.nn.functional

    def timed(
        name: str, made: Callable[[int], Callable[[], object]], work: Callable[[int], float]
    ) -> Iterator[Observation]:
        width = 256
        while width <= _WIDEST:
            seconds = _shortest(made(width))
            figures = {"seconds": seconds, "work": work(width)}
            yield Observation(key=Key(Kind.SECONDS, name, f"{width} bfloat16"), figures=figures)
            if seconds > _LONG:
                return
            width *= 2

    def square(width: int) -> Tensor:
        return torch.ones(width, width, dtype=torch.bfloat16, device="npu")

    def product(width: int) -> Callable[[], object]:
        operand = square(width)
        return partial(torch.matmul, operand, operand)

    yield from timed("matmul", product, lambda n: 2.0 * n**3)
    yield from timed("copy", lambda n: square(n).clone, lambda n: 4.0 * n * n)
    yield from timed("softmax", lambda n: partial(functional.softmax, square(n), -1), lambda n: 4.0 * n * n)


def _shortest(done: Callable[[], object]) -> float:
    """Return the shortest duration of three runs. An additional first run is not counted."""
    import torch

    best = float("inf")
    for turn in range(4):
        torch.npu.synchronize()
        began = time.perf_counter()
        done()
        torch.npu.synchronize()
        if turn:
            best = min(best, time.perf_counter() - began)
    return best
