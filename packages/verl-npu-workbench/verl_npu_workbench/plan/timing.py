"""Estimates a range for the duration of each phase of a step, from the recorded operators and collectives.

The lower end assumes good efficiency, communication hidden behind computation, and answers of the planned length. The
upper end assumes poor efficiency, communication that is not hidden, and an answer of the greatest length that the
script allows, for which all others wait. Recompilation, the reward, and the trainer's own process are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.language import gettext as _

from .hardware import Hardware
from .job import Phase, PhaseCost
from .planning import Planned
from .rollout import Rollout
from .share import Share


@dataclass(frozen=True, slots=True)
class Span:
    """The best-case and worst-case duration of one phase in a step, in seconds."""

    phase: str
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class _Efficiency:
    """The assumed fractions of an NPU's peak speeds that are reached, and the seconds that the host needs to launch an
    operator."""

    operators: float
    links: float
    copies: float
    issue: float


GRAPHS, EAGER = 1.1e-3, 6.6e-3
"""Upper bounds, in seconds, on the time that an engine takes per layer and token: with graphs, and in eager mode. They
are derived from verl-ascend-recipe's step times.

Source: benchmarks/plan_baselines.py. With graphs, five jobs needed 0.6 to 1.1 ms. Without graphs, one job is known;
users reported 3.5 to 4.3 ms for mixtures of experts and about 1.7 ms for dense models (vllm-ascend issue 770).
"""
_GOOD = _Efficiency(operators=0.6, links=0.8, copies=0.9, issue=4e-6)
_POOR = _Efficiency(operators=0.3, links=0.4, copies=0.4, issue=20e-6)
_TRAINING_ASSUMPTIONS = (
    _(
        "operators reach {operators:.0%} to {good_operators:.0%} of an NPU's peak speeds, links {links:.0%} "
        "to {good_links:.0%}, and copies between host and NPU {copies:.0%} to {good_copies:.0%}"
    ).format(
        operators=_POOR.operators,
        good_operators=_GOOD.operators,
        links=_POOR.links,
        good_links=_GOOD.links,
        copies=_POOR.copies,
        good_copies=_GOOD.copies,
    ),
    _("the host issues an operator in {issue:.0f} to {issue_too:.0f} microseconds").format(
        issue=_GOOD.issue * 1000000.0, issue_too=_POOR.issue * 1000000.0
    ),
)
_ROLLOUT_ASSUMPTIONS = (
    _(
        "an engine takes at most {graphs:.1f} ms for each layer and token of the longest answer that "
        "the script allows, like the slowest of five published jobs. With enforce_eager, an engine "
        "takes {eager:.1f} ms, like the only published job; users reported 3.5 to 4.3 ms "
        "(benchmarks/plan_baselines.py)"
    ).format(graphs=GRAPHS * 1000.0, eager=EAGER * 1000.0),
    _("in the best case, all answers have the planned length, and the engine decodes all its sequences together"),
)
_BOTH_WAYS = 2


def assumptions(planned: Planned) -> tuple[str, ...]:
    """Return the assumptions behind the estimated range of the duration of a step."""
    return (*_TRAINING_ASSUMPTIONS, *(_ROLLOUT_ASSUMPTIONS if planned.rollout else ()))


def spans(planned: Planned) -> list[Span]:
    """Return the times of a step's phases, in order."""
    found = [_rollout(planned, planned.rollout)] if planned.rollout else []
    for phase in Phase:
        if phase in (Phase.LOAD, Phase.ROLLOUT, Phase.VALIDATION, Phase.CHECKPOINT):
            continue
        costs = [cost for outcome in planned.outcomes for cost in outcome.phases if cost.phase == phase.value]
        each = [_span(cost, planned) for cost in costs]
        if each:
            # The stages of a pipeline wait for the slowest.
            found.append(Span(phase.value, max(span.least for span in each), max(span.most for span in each)))
    return found


def total(found: Sequence[Span], servers: int = 0) -> Span:
    """Return the duration of a whole step, which is the sum of its phases. If there are separate servers, the rollout
    runs in parallel with the other phases."""
    parts = (found[:1], found[1:]) if servers else (found,)
    least = max(sum(span.least for span in part) for part in parts)
    return Span("step", least, max(sum(span.most for span in part) for part in parts))


def _span(cost: PhaseCost, planned: Planned) -> Span:
    share = planned.share
    times = _times(share, Phase(cost.phase)) if cost.micro_batches else 1.0
    fuller = _fuller(share, Phase(cost.phase))
    steps = share.step_sequences / share.mini_sequences if cost.optimizer_calls else 0.0
    planned_steps = max(share.sequences / share.mini_sequences, 1.0)

    def seconds(efficiency: _Efficiency) -> tuple[float, float]:
        working = times * max(cost.seconds / efficiency.operators, fuller * cost.calls * efficiency.issue)
        optimizing = max(cost.optimizer_seconds / efficiency.operators, cost.optimizer_calls * efficiency.issue)
        copying = cost.copied / planned.hardware.host.value / efficiency.copies
        # Weights are gathered once for each micro batch.
        communicating = times * fuller * _communication(cost, planned.hardware, share.local) / efficiency.links
        return working + optimizing * steps / planned_steps + copying, communicating

    computing, communicating = seconds(_GOOD)
    computing_at_worst, communicating_at_worst = seconds(_POOR)
    return Span(cost.phase, max(computing, communicating), computing_at_worst + communicating_at_worst)


def _times(share: Share, phase: Phase) -> float:
    """Return the ratio of the tokens in a real step to those in the plan. The number of micro batches grows by the
    same factor."""
    sequences, lengths = (share.sequences, share.lengths) if phase.trains else (share.scored, share.scored_lengths)
    each = share.prompt + share.response
    # If lengths differ, the plan has the run's heaviest sequences.
    return share.step_sequences * each / (sum(map(sum, lengths)) if lengths else sequences * each)


def _fuller(share: Share, phase: Phase) -> float:
    """Return how much larger the plan's micro batches are than the usual ones of a step. The plan has the largest
    ones."""
    found = [batch for batch in share.micro_batches if batch.phase is phase]
    return max((share.budgets.get(batch.key, batch.size) / batch.size for batch in found), default=1.0)


def _communication(cost: PhaseCost, hardware: Hardware, local: int) -> float:
    """Return a lower bound, in seconds, on the duration of a phase's collectives: the time to send each rank's bytes
    over the slowest link."""
    seconds = 0.0
    for name, ranks, _unused, size in cost.messages:
        link = hardware.link.value if ranks <= local else hardware.network.value
        others = (ranks - 1) / ranks
        if name.startswith("reduce_scatter"):
            sent = size * (ranks - 1)  # here, the size is that of the output
        elif name.startswith("all_reduce"):
            sent = _BOTH_WAYS * size * others
        else:
            sent = size * others
        seconds += sent / link
    return seconds


def _rollout(planned: Planned, rollout: Rollout) -> Span:
    """Return the rollout's duration. Computation limits the prefill, and reading weights and cache limits decoding."""
    share, hardware, model = planned.share, planned.hardware, planned.model
    sequences = max(share.step_sequences * share.data * rollout.tensor // rollout.npus, 1)
    together = min(max(rollout.sequences, 1), sequences)
    rounds = -(-sequences // together)
    prefill = 2.0 * model.active * share.prompt * sequences / rollout.tensor / hardware.flops.value
    read = rollout.engine_weights + rollout.token * together * (share.prompt + share.response / 2)
    decode = rounds * share.response * read / hardware.bandwidth.value
    least = (prefill + decode) / _GOOD.operators
    issued = rounds * share.longest * model.layers * (EAGER if rollout.eager else GRAPHS)
    most = prefill / _POOR.operators + max(decode / _POOR.operators, issued)
    return Span(Phase.ROLLOUT.value, least, most)
