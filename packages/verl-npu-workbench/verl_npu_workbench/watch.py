"""A training run in progress: where its time goes, its curves, and its anomalies.

The phases of a step are those of verl's timers that do not overlap. Their names are the names that verl's trainers
give to `marked_timer` at all pins. Nested timers are left out: the parts of `gen` that vLLM's wrapper and the agent
loop report, and every name with a slash.

Anomalies are found by rules over the steps. An anomaly is a hint to look closer, not a verdict on the training. The
limits for the rollout's probabilities come from verl's docs/faq/faq.rst: below 0.005 is normal, above 0.01 suggests a
precision issue. The other limits were chosen for verl-npu.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import pairwise
from statistics import median

from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from .ending import Ending
from .logs.metrics import (
    CUT_ANSWERS,
    DRIFT,
    ENTROPY,
    GRAD_NORM,
    HOST_MEMORY,
    MISMATCH,
    REWARD,
    ROLLOUT_SPEED,
    SHOWN,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS,
    Metric,
    plain,
)
from .logs.sides import RECENT, Waiting, waiting_of
from .logs.training import TrainingLog, spans

OTHER = _("the rest")
"""The part of a step that no timer covers."""
_PREFIX = "timing_s/"
_STEP = "timing_s/step"
_NOT_PHASES = frozenset(
    {"step", "start_profile", "stop_profile", "generate_sequences", "reshard", "tool_calls", "compute_score", "verify"}
)
_ROUNDING = 1.01


def split(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase of a step, the longest phase first, followed by the remaining time that belongs
    to no phase.

    Asynchronous trainers run some phases in parallel, so the phases together can take longer than the step. In that
    case, there is no remaining time.
    """
    phases = {
        name.removeprefix(_PREFIX): seconds
        for name, seconds in metrics.items()
        if name.startswith(_PREFIX) and _is_phase(name.removeprefix(_PREFIX)) and 0 < seconds < float("inf")
    }
    found = dict(sorted(phases.items(), key=lambda phase: -phase[1]))
    whole = metrics.get(_STEP)
    if whole is not None and found and sum(found.values()) <= whole * _ROUNDING < float("inf"):
        found[OTHER] = max(0.0, whole - sum(found.values()))
    return found


def _is_phase(name: str) -> bool:
    return "/" not in name and name not in _NOT_PHASES


COLLAPSED = 0.1
"""The entropy is collapsed below this fraction of its initial value."""
JUMP = 5.0
"""The gradient norm jumps above this multiple of the median over earlier steps."""
SLOW = 2.0
"""A step is slow above this multiple of the median duration."""
DRIFT_NORMAL, DRIFT_ISSUE, DRIFT_GROWTH = 0.005, 0.01, 2.0
FEW, BEFORE = 5, 20
"""The smallest number of steps that a median is computed from, and the largest number of earlier steps that are used
for a median."""
LEARNED = 0.8
"""If the mean reward is above this fraction of the best response's reward, the task is learned, and low entropy is
expected."""
LEAK_SHARE, LEAK_STEPS = 0.05, 0.7
"""The limits for a memory leak on a host: the growth as a fraction of the initial memory, and the fraction of the
steps at which memory grew."""
SLOWER = 1.5
"""The rollout is slower above this multiple of its initial time per token."""
MISMATCH_ISSUE, MISMATCH_GROWTH = 0.01, 3.0
CUT, CUT_MORE = 0.25, 2.0
"""Two limits for responses that are cut off: their fraction, and a multiple of their initial fraction."""


class Kind(Enum):
    """The kinds of anomalies, with their codes."""

    NOT_FINITE = "not-a-number"
    ENTROPY = "entropy-collapse"
    GRAD_NORM = "gradient-norm-jump"
    SLOW = "slow-step"
    DRIFT = "rollout-drift"
    HOST_MEMORY = "host-memory-grows"
    ROLLOUT = "slower-rollout"
    MISMATCH = "kl-to-the-rollout"
    CUT_ANSWERS = "answers-cut"


ABOUT: Mapping[Kind, str] = {
    Kind.NOT_FINITE: "A metric is NaN or infinite. From that step on, weights may be NaN too: look at the first step "
    "that has it.",
    Kind.ENTROPY: f"The entropy is below {COLLAPSED:.0%} of the median of the first {FEW} steps: the policy no longer "
    "explores.",
    Kind.GRAD_NORM: f"The gradient norm is over {JUMP:g} times the median of up to {BEFORE} earlier steps.",
    Kind.SLOW: f"A step takes over {SLOW:g} times the median. The text names the phase that grew most.",
    Kind.DRIFT: "The probabilities of rollout and trainer differ on average by over "
    f"{DRIFT_ISSUE:g}, or by over {DRIFT_NORMAL:g} and {DRIFT_GROWTH:g} times the difference at the beginning: the "
    "engine and the trainer compute different probabilities for the same tokens.",
    Kind.HOST_MEMORY: f"A host's memory in use grew at over {LEAK_STEPS:.0%} of the steps, by over "
    f"{LEAK_SHARE:.0%} in total: something leaks memory, and the job ends when the host has none left.",
    Kind.ROLLOUT: f"The rollout takes over {SLOWER:g} times as long for a token as at the beginning.",
    Kind.MISMATCH: f"The KL divergence between trainer and rollout is over {MISMATCH_ISSUE:g} and over "
    f"{MISMATCH_GROWTH:g} times its value at the beginning: the probabilities of the engine move away from the "
    "trainer's.",
    Kind.CUT_ANSWERS: f"Over {CUT:.0%} of the answers are cut off at the length limit, over {CUT_MORE:g} times the "
    "share at the beginning: data.max_response_length is too small, or the answers never end.",
}


@dataclass(frozen=True, slots=True)
class Oddity:
    """One anomaly in a training run, such as a jump in the gradient norm."""

    kind: Kind
    step: int
    """The number of the first step that shows the anomaly."""
    text: str
    """The observation, as a sentence without a full stop."""


def oddities(log: TrainingLog) -> list[Oddity]:
    """Return all anomalies, ordered by the first step that shows each anomaly."""
    return sorted((odd for rule in _RULES for odd in rule(log)), key=lambda odd: odd.step)


def _not_finite(log: TrainingLog) -> Iterator[Oddity]:
    found: dict[str, list[int]] = {}
    for step, metrics in log.steps.items():
        # verl writes NaN if there was nothing to compare.
        skipped = DRIFT.valid and metrics.get(DRIFT.valid) == 0
        for name, value in metrics.items():
            if not math.isfinite(value) and not (skipped and "rollout" in name):
                found.setdefault(name, []).append(step)
    together: dict[tuple[int, ...], list[str]] = {}
    for name, steps in found.items():
        together.setdefault(tuple(steps), []).append(name)
    for at, names in together.items():
        shown = _(", ").join(names[:3]) + (
            _(" and {count} more").format(count=len(names) - 3) if len(names) > 3 else ""
        )
        yield Oddity(
            Kind.NOT_FINITE,
            at[0],
            ngettext(
                "{shown} is NaN or infinite at step {spans}", "{shown} are NaN or infinite at step {spans}", len(names)
            ).format(shown=shown, spans=spans(at)),
        )


def _entropy(log: TrainingLog) -> Iterator[Oddity]:
    values = _finite(ENTROPY.of(log))
    if len(values) <= FEW:
        return
    start = median(list(values.values())[:FEW])
    low = [step for step, value in list(values.items())[FEW:] if value < COLLAPSED * start]
    if start > 0 and low and not _learned(log):
        last = list(values.values())[-1]
        yield Oddity(
            Kind.ENTROPY,
            low[0],
            _("the entropy fell below {collapsed:.0%} of its initial {start:.3g}; it is now {last:.3g}").format(
                collapsed=COLLAPSED, start=start, last=last
            ),
        )


def _learned(log: TrainingLog) -> bool:
    """Return whether the mean reward is close to the best answer's reward."""
    means, best = (
        [*_finite(REWARD.of(log)).values()][-FEW:],
        [*_finite(log.series("critic/rewards/max")).values()][-FEW:],
    )
    return bool(means and best) and 0 < LEARNED * median(best) <= median(means)


def _grad_norm(log: TrainingLog) -> Iterator[Oddity]:
    values = list(_finite(GRAD_NORM.of(log)).items())
    for number, (step, value) in enumerate(values):
        before = [each for _unused, each in values[max(0, number - BEFORE) : number]]
        if len(before) >= FEW and 0 < JUMP * median(before) < value:
            times = value / median(before)
            yield Oddity(
                Kind.GRAD_NORM,
                step,
                _("the gradient norm is {value:.3g}, {times:.1f} times the median of the steps before").format(
                    value=value, times=times
                ),
            )


def _slow(log: TrainingLog) -> Iterator[Oddity]:
    seconds = _finite(STEP_SECONDS.of(log))
    # The first step of a run compiles and warms up.
    warm = {next(iter(log.steps), 0), *(restart.to for restart in log.restarts)}
    phases: dict[str, list[float]] | None = None
    if len(seconds) <= FEW:
        return
    usual = median(seconds.values())
    for step, value in seconds.items():
        if step not in warm and 0 < SLOW * usual < value:
            phases = phases or _phases(log)
            more = _slowest_phase(log, step, phases)
            yield Oddity(
                Kind.SLOW,
                step,
                _("the step took {value:.3g} s, {value_too:.1f} times the median of {usual:.3g} s{more}").format(
                    value=value, value_too=value / usual, usual=usual, more=more
                ),
            )


def _phases(log: TrainingLog) -> dict[str, list[float]]:
    """Return the sorted seconds of each phase over all steps."""
    found: dict[str, list[float]] = {}
    for metrics in log.steps.values():
        for name, seconds in split(metrics).items():
            found.setdefault(name, []).append(seconds)
    return {name: sorted(seconds) for name, seconds in found.items()}


def _slowest_phase(log: TrainingLog, slow: int, phases: Mapping[str, Sequence[float]]) -> str:
    # A phase that few steps have, such as saving, has no usual duration: all of it counts as extra.
    few = len(log.steps) / 2
    more = {
        name: seconds - (_median_without(phases[name], seconds) if len(phases[name]) - 1 > few else 0.0)
        for name, seconds in split(log.steps[slow]).items()
        if name != OTHER
    }
    name = max(more, key=lambda each: more[each], default="")
    return _("; {name} took {more:.3g} s more than usual").format(name=name, more=more[name]) if name else ""


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of the sorted values after leaving out one occurrence of `value`."""
    place, left = bisect_left(ordered, value), len(ordered) - 1
    low, high = ((left - 1) // 2, left // 2)
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _drift(log: TrainingLog) -> Iterator[Oddity]:
    values = _finite(DRIFT.of(log))
    high = [step for step, value in values.items() if value > DRIFT_ISSUE]
    if high:
        worst = max(values[step] for step in high)
        yield Oddity(
            Kind.DRIFT,
            high[0],
            _(
                "the average difference between the probabilities of rollout and trainer reached {worst:.3g}, and was "
                "over {drift_issue} at {count} of {values_too} steps: the engine and the trainer compute different "
                "probabilities for the same tokens"
            ).format(worst=worst, drift_issue=DRIFT_ISSUE, count=len(high), values_too=len(values)),
        )
        return
    if len(values) < 2 * FEW:
        return
    steps, rows = list(values), list(values.values())
    start, now = median(rows[:FEW]), median(rows[-FEW:])
    if now > DRIFT_NORMAL and now > DRIFT_GROWTH * start:
        yield Oddity(
            Kind.DRIFT,
            steps[-FEW],
            _(
                "the average difference between the probabilities of rollout and trainer grew from "
                "{start:.3g} at the beginning to {now:.3g}: rollout and trainer drift apart"
            ).format(now=now, start=start),
        )


def _first_and_last(log: TrainingLog, metric: Metric) -> tuple[float, float, int] | None:
    """Return three numbers, or None if there are too few steps: the median over the first steps, the median over the
    last steps, and the number of the first of these last steps.

    The first step of the training is omitted, because it includes compilation and warm-up.
    """
    values = _finite(metric.of(log))
    rows = [*values.items()][1:]
    if len(rows) < 2 * FEW:
        return None
    first, last = ([value for _, value in each] for each in (rows[:FEW], rows[-FEW:]))
    return median(first), median(last), rows[-FEW][0]


def _host_memory(log: TrainingLog) -> Iterator[Oddity]:
    found = _first_and_last(log, HOST_MEMORY)
    if found is None or log.restarts:
        return
    start, now, step = found
    rows = [*_finite(HOST_MEMORY.of(log)).values()][1:]
    # Another program that starts on the host makes one jump; a leak grows at most steps.
    grew = sum(later > earlier for earlier, later in pairwise(rows)) / (len(rows) - 1)
    if start > 0 and now - start > LEAK_SHARE * start and grew >= LEAK_STEPS:
        each = (now - start) / (len(rows) - FEW)
        yield Oddity(
            Kind.HOST_MEMORY,
            step,
            _(
                "the host's memory in use grew from {start:.4g} to {now:.4g} GB, at {grew:.0%} of the steps, "
                "by {each:.3g} MB in each step: a process leaks memory"
            ).format(start=start, now=now, grew=grew, each=each * 1000),
        )


def _rollout(log: TrainingLog) -> Iterator[Oddity]:
    found = _first_and_last(log, ROLLOUT_SPEED)
    if found is not None and 0 < SLOWER * found[0] < found[1]:
        start, now, step = found
        yield Oddity(
            Kind.ROLLOUT,
            step,
            _(
                "the rollout takes {now:.3g} ms for each token, {times:.1f} times the {start:.3g} ms at the beginning"
            ).format(now=now, times=now / start, start=start),
        )


def _mismatch(log: TrainingLog) -> Iterator[Oddity]:
    found = _first_and_last(log, MISMATCH)
    if found is not None and found[1] > MISMATCH_ISSUE and found[1] > MISMATCH_GROWTH * abs(found[0]):
        start, now, step = found
        yield Oddity(
            Kind.MISMATCH,
            step,
            _(
                "the KL divergence between trainer and rollout rose from {start:.3g} to {now:.3g}: the probabilities "
                "of the engine move away from the trainer's"
            ).format(start=start, now=now),
        )


def _cut_answers(log: TrainingLog) -> Iterator[Oddity]:
    found = _first_and_last(log, CUT_ANSWERS)
    if found is not None and found[1] > CUT and found[1] > CUT_MORE * found[0]:
        start, now, step = found
        yield Oddity(
            Kind.CUT_ANSWERS,
            step,
            _(
                "{now:.0%} of the answers are cut off at the length limit ({start:.0%} at the beginning): "
                "data.max_response_length is too small, or the answers never end"
            ).format(start=start, now=now),
        )


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {step: value for step, value in values.items() if math.isfinite(value)}


_RULES: tuple[Callable[[TrainingLog], Iterator[Oddity]], ...] = (
    _not_finite,
    _entropy,
    _grad_norm,
    _slow,
    _drift,
    _host_memory,
    _rollout,
    _mismatch,
    _cut_answers,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a step."""

    name: str
    seconds: float
    usual: float
    """The median over the recent steps that have this phase."""


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot of the state of a training run."""

    log: TrainingLog
    step: int
    """The last logged step."""
    seconds: float | None
    """The duration of that step."""
    phases: tuple[Phase, ...]
    tokens_per_second: float | None
    """The number of tokens per second on all NPUs together."""
    throughput: float | None
    """The number of tokens per second and NPU, as verl reports it."""
    odd: tuple[Oddity, ...]
    waiting: Waiting | None = None
    """Which side waits for the other, if the training is asynchronous and the log shows it."""
    ending: Ending | None = None
    """The state of the training; None if it was not checked."""

    @property
    def calm(self) -> bool:
        """Return true if nothing needs attention."""
        return not self.odd and not (self.ending and self.ending.odd)


def state_of(log: TrainingLog, ending: Ending | None = None) -> State | None:
    """Return a snapshot of a training run from its log, or None if the log contains no step yet."""
    if not log.steps:
        return None
    seconds, tokens = STEP_SECONDS.of(log).get(log.last), TOKENS.of(log).get(log.last)
    recent = [split(log.steps[step]) for step in [step for step in log.steps if step <= log.last][-RECENT:]]
    phases = tuple(
        Phase(name, spent, median([each[name] for each in recent if name in each]))
        for name, spent in split(log.steps[log.last]).items()
    )
    return State(
        log=log,
        step=log.last,
        seconds=seconds,
        phases=phases,
        tokens_per_second=tokens / seconds if tokens is not None and seconds else None,
        throughput=THROUGHPUT.of(log).get(log.last),
        odd=tuple(oddities(log)),
        waiting=waiting_of(log),
        ending=ending,
    )


def content(state: State) -> dict[str, object]:
    """Return a state as a JSON-serializable object."""
    ending = state.ending
    return {
        "source": state.log.source,
        "simulated": state.log.simulated,
        "steps": state.log.count,
        "step": state.step,
        "of_steps": ending.total if ending else 0,
        "standing": ending.standing.value if ending else None,
        "seconds_left": plain(ending.left) if ending else None,
        "seconds_quiet": round(ending.quiet, 1) if ending else None,
        "error": ending.error if ending else "",
        "seconds": plain(state.seconds),
        "phases": [
            {"name": phase.name, "seconds": plain(phase.seconds), "usual": plain(phase.usual)}
            for phase in state.phases
        ],
        "tokens_per_second": plain(state.tokens_per_second),
        "throughput": plain(state.throughput),
        "metrics": {
            metric.title: plain(values[state.step])
            for metric in SHOWN
            if state.step in (values := metric.of(state.log))
        },
        "waiting": asdict(state.waiting) if state.waiting else None,
        "odd": [{"kind": odd.kind.value, "step": odd.step, "text": odd.text} for odd in state.odd],
        "notes": state.log.notes(),
    }
