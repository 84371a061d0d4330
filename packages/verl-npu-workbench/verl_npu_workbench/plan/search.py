"""Searches, by repeated planning, for settings that make a job fit, and for the largest micro batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu import progress
from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from ..jobs.trainer import Trainer
from .hardware import GIB
from .job import Holder, Phase
from .knobs import Knob, knobs
from .planning import Planned, Request, plan
from .share import MicroBatch
from .verdict import Fit, Verdict, judge

_MOST_TRIES, _MOST_PROBES = 8, 10
_MOST_TIMES = 8
"""The largest number of NPUs that is proposed, as a multiple of the script's own."""
_ALIKE = 0.98
"""If memory shrinks by a smaller factor than this, it counts as unchanged."""
_LEAST_BYTES = 2 * _ALIKE
"""From this number of bytes per parameter on, gradients count as undivided."""
_WHOLE = _(
    ". Each NPU holds all gradients, because verl divides gradients among NPUs only after the "
    "last micro-batch of a mini-batch"
)


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a search: the settings that have been changed so far, and the resulting plan."""

    knob: Knob
    changes: tuple[tuple[str, object], ...]
    planned: Planned
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Search:
    """The attempts to find settings that make a plan fit."""

    tries: tuple[Try, ...] = ()
    cause: str = ""
    """A sentence that explains why more NPUs do not help. Empty if the search did not find this."""

    @property
    def proposal(self) -> Mapping[str, object]:
        """The settings that make the plan fit, or an empty mapping if no such settings were found."""
        return dict(self.tries[-1].changes) if self.tries and self.tries[-1].verdict.fit is Fit.FITS else {}


def make_fit(trainer: Trainer, tree: Path, request: Request, planned: Planned, verdict: Verdict) -> Search:
    """Change settings (see `Knob`) one by one until the plan fits. If a plan fits, it is the last attempt in the
    result.

    A change that does not reduce the missing memory is undone. Some memory does not shrink with more NPUs. If this
    memory alone exceeds an NPU's memory, no larger number of NPUs is tried. The number of NPUs is also limited to a
    fixed multiple of the number in the script.
    """
    tries: list[Try] = []
    useless: set[tuple[tuple[str, object], ...]] = set()
    changes: dict[str, object] = dict(request.changes)
    most_npus, cause = planned.share.world * _MOST_TIMES, ""
    while verdict.fit.lacks and len(tries) < _MOST_TRIES:
        worth = [knob for knob in knobs(planned, verdict) if knob.changes not in useless]
        left = [knob for knob in worth if knob.npus <= most_npus]
        if not left:
            cause = cause or _too_many(worth, most_npus)
            break
        knob = left[0]
        together = {**changes, **dict(knob.changes)}
        try:
            asked = dataclasses.replace(request, changes=tuple(together.items()), model=planned.model)
            with progress.step(
                _("try {count} of at most {most_tries}: {changes}").format(
                    count=len(tries) + 1,
                    most_tries=_MOST_TRIES,
                    changes=_(", ").join(f"{key}={value}" for key, value in knob.changes),
                )
            ):
                again = plan(trainer, tree, asked)
        except PlanError:
            useless.add(knob.changes)
            continue
        judged = judge(again)
        tries.append(Try(knob, tuple(together.items()), again, judged))
        if knob.npus and judged.fit.lacks and (stays := _stays(planned, verdict, again, judged)):
            cause, most_npus = stays, 0
        if judged.fit is Fit.FAILED or (judged.fit.lacks and _excess(again, judged) >= _excess(planned, verdict)):
            useless.add(knob.changes)
            continue
        changes, planned, verdict = together, again, judged
    return Search(tuple(tries), cause)


def _stays(before: Planned, verdict: Verdict, after: Planned, judged: Verdict) -> str:
    """Describe the memory that does not shrink with more NPUs, if it alone exceeds an NPU's memory. Empty
    otherwise."""
    earlier = {phase.phase: phase for phase in verdict.phases}
    for phase in (each for each in judged.phases if each.fit is Fit.DOES_NOT and each.phase in earlier):
        known = earlier[phase.phase].holders
        alike = {name: size for name, size in phase.holders.items() if size >= _ALIKE * known.get(name, 0) > 0}
        if sum(alike.values()) <= judged.capacity:
            continue
        largest = sorted(alike, key=lambda name: -alike[name])
        sizes = _(", ").join(
            _("{name} {alike:.1f} GiB").format(name=name, alike=alike[name] / GIB)
            for name in largest
            if alike[name] >= GIB
        )
        whole = Holder.GRADIENTS.value in largest[:1] and alike[largest[0]] >= after.model.parameters * _LEAST_BYTES
        return (
            _(
                "{phase}: more NPUs do not help, because the part of the memory that does not shrink from "
                "{share_world} to {world} NPUs exceeds the {capacity:.1f} GiB of one NPU: {sizes}"
            ).format(
                phase=phase.phase,
                world=after.share.world,
                share_world=before.share.world,
                capacity=judged.capacity / GIB,
                sizes=sizes,
            )
            + _WHOLE * whole
        )
    return ""


def _too_many(worth: Sequence[Knob], most: int) -> str:
    """If the only knobs left need more NPUs than allowed, say so. Empty otherwise."""
    return (
        _("the models' state needs {npus} NPUs, and plans propose at most {most}").format(
            npus=worth[0].npus, most=most
        )
        if worth and most
        else ""
    )


def _excess(planned: Planned, verdict: Verdict) -> int:
    """Return the number of missing bytes, added up over all phases that exceed an NPU's memory, and over the engine if
    it cannot hold one sequence."""
    over = sum(max(phase.needed - verdict.capacity, 0) for phase in verdict.phases)
    return over + (max(planned.rollout.least - planned.rollout.taken, 0) if planned.rollout else 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """A micro-batch size that the search has tried, with the result."""

    size: int
    fits: bool
    phase: str
    """The phase that needs the most memory, among the phases whose micro batches have this size."""
    needed: int
    """The bytes that this phase needs."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest micro batch that was found."""

    key: str
    size: int
    """The setting's value; 0 if no size fits."""
    exact: bool
    """True if the next larger size does not fit or does not exist."""
    probes: tuple[Probe, ...]


def largest_micro_batch(trainer: Trainer, tree: Path, request: Request, planned: Planned) -> Largest:
    """Find the largest size that fits, by doubling and then by bisection.

    The search changes one setting, and ignores phases whose micro-batch size comes from another setting. It tries only
    sizes that verl accepts: divisors of a mini batch, and token budgets that hold whole sequences.

    Raises:
        PlanError: for the same reasons as `plan`.
    """
    batch = _update_micro_batch(planned)
    sizes = _sizes(planned, batch)
    probes: dict[int, Probe] = {}
    fitting, failing = -1, len(sizes)
    at = max((index for index, size in enumerate(sizes) if size <= planned.settings.whole(batch.key, 1)), default=0)
    while failing - fitting > 1 and len(probes) < _MOST_PROBES:
        size = sizes[at]
        changed = dataclasses.replace(request, changes=(*request.changes, (batch.key, size)), model=planned.model)
        with progress.step(
            _("size {count} of at most {most_probes}: {key}={size}").format(
                count=len(probes) + 1, most_probes=_MOST_PROBES, key=batch.key, size=size
            )
        ):
            probes[at] = _probe(size, planned, plan(trainer, tree, changed))
        if probes[at].fits:
            fitting = at
        else:
            failing = at
        at = min(2 * fitting + 1, failing - 1) if failing == len(sizes) else (fitting + failing) // 2
    return Largest(
        key=batch.key,
        size=sizes[fitting] if fitting >= 0 else 0,
        exact=failing - fitting == 1,
        probes=tuple(probe for _unused, probe in sorted(probes.items())),
    )


def _update_micro_batch(planned: Planned) -> MicroBatch:
    return next(batch for batch in planned.share.micro_batches if batch.phase in (Phase.UPDATE_ACTOR, Phase.TRAINING))


def _sizes(planned: Planned, batch: MicroBatch) -> Sequence[int]:
    share = planned.share
    if batch.dynamic:
        return [
            -(-sum(share.padded) * number // batch.sequence_parallel) for number in range(1, share.mini_sequences + 1)
        ]
    times = share.data if batch.together else 1
    # verl requires that they divide a mini batch.
    return [size * times for size in range(1, share.mini_sequences + 1) if share.mini_sequences % size == 0]


def _probe(size: int, before: Planned, planned: Planned) -> Probe:
    """Judge the phases whose micro batches have this size. By default, other phases inherit the token budget of the
    update."""
    update = _update_micro_batch(before)
    sizes = {batch.phase: batch.size for batch in before.share.micro_batches}
    alike = {update.phase.value} | {
        batch.phase.value
        for batch in planned.share.micro_batches
        if batch.key == update.key or batch.size != sizes.get(batch.phase)
    }
    verdict = judge(planned)
    judged = [phase for phase in verdict.phases if phase.phase in alike]
    if verdict.fit is Fit.FAILED or not judged:
        return Probe(size, False, planned.outcomes[0].failed_in, 0)
    worst = max(judged, key=lambda phase: phase.needed)
    return Probe(size, worst.fit is Fit.FITS, worst.phase, worst.needed)
