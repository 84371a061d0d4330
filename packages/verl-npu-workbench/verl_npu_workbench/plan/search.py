"""Looks for settings that fit by planning again: those that make a plan fit, and the largest micro batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
"""Times the script's own NPUs that are proposed."""
_ALIKE = 0.98
"""Of what there was before: this part of it, or more, counts as unchanged."""
_LEAST_BYTES = 2 * _ALIKE
"""Of a whole gradient, for each of the model's parameters."""
_WHOLE = _(
    ". The gradients are whole on every NPU: verl divides them after the last micro batch of a mini batch only, and "
    "until then adds them up as they are"
)


@dataclass(frozen=True, slots=True)
class Try:
    """One more plan: all settings that were changed up to it, and what it came to."""

    knob: Knob
    changes: tuple[tuple[str, object], ...]
    planned: Planned
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Search:
    """What was tried to make a plan fit."""

    tries: tuple[Try, ...] = ()
    cause: str = ""
    """Why more NPUs do not help, in a sentence; empty if that did not show."""

    @property
    def proposal(self) -> Mapping[str, object]:
        """The settings with which it fits; empty if none were found."""
        return dict(self.tries[-1].changes) if self.tries and self.tries[-1].verdict.fit is Fit.FITS else {}


def make_fit(
    trainer: Trainer,
    tree: Path,
    request: Request,
    planned: Planned,
    verdict: Verdict,
    told: Callable[[str], None] = lambda text: None,
) -> Search:
    """Turn one knob after the other until it fits: the last try fits, or none did.

    A knob that does not lower what the worst phase needs is turned back. More NPUs are not tried again once they have
    left as it is what alone is more than an NPU has, and no more than some times as many are proposed.
    """
    tries: list[Try] = []
    useless: set[tuple[tuple[str, object], ...]] = set()
    changes: dict[str, object] = dict(request.changes)
    most_npus, cause = planned.share.world * _MOST_TIMES, ""
    while verdict.fit is Fit.DOES_NOT and len(tries) < _MOST_TRIES:
        worth = [knob for knob in knobs(planned, verdict) if knob.changes not in useless]
        left = [knob for knob in worth if knob.npus <= most_npus]
        if not left:
            cause = cause or _too_many(worth, most_npus)
            break
        knob = left[0]
        together = {**changes, **dict(knob.changes)}
        told(_("trying {changes}").format(changes=_(", ").join((f"{key}={value}" for key, value in knob.changes))))
        try:
            asked = dataclasses.replace(request, changes=tuple(together.items()), model=planned.model)
            with progress.step(
                _("try {count}, of {most_tries} at most").format(count=len(tries) + 1, most_tries=_MOST_TRIES)
            ):
                again = plan(trainer, tree, asked, told)
        except PlanError:
            useless.add(knob.changes)
            continue
        judged = judge(again)
        tries.append(Try(knob, tuple(together.items()), again, judged))
        if knob.npus and judged.fit is Fit.DOES_NOT and (stays := _stays(planned, verdict, again, judged)):
            cause, most_npus = stays, 0
            told(cause)
        if judged.fit is Fit.FAILED or (
            judged.fit is Fit.DOES_NOT and _excess(again, judged) >= _excess(planned, verdict)
        ):
            useless.add(knob.changes)
            continue
        changes, planned, verdict = together, again, judged
    return Search(tuple(tries), cause)


def _stays(before: Planned, verdict: Verdict, after: Planned, judged: Verdict) -> str:
    """Say what is as large with more NPUs as with fewer, if that alone is more than an NPU has; empty if it is not."""
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
                "{phase}: more NPUs do not help, since what is as large on {world} of them as on "
                "{share_world} is more than the {capacity:.1f} GiB of one: {sizes}"
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
    """Say that only more NPUs are left to be tried, and that they are more than anyone would take."""
    return (
        _("its state would need {npus} NPUs, and no more than {most} are proposed").format(
            npus=worth[0].npus, most=most
        )
        if worth and most
        else ""
    )


def _excess(planned: Planned, verdict: Verdict) -> int:
    """Bytes that all phases together are over the NPU's memory, and that the engine lacks for one sequence."""
    over = sum(max(phase.needed - verdict.capacity, 0) for phase in verdict.phases)
    return over + (max(planned.rollout.least - planned.rollout.taken, 0) if planned.rollout else 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """One size that was planned."""

    size: int
    fits: bool
    phase: str
    """The phase that needs most of those whose micro batches have this size."""
    needed: int
    """Bytes that it needs."""


@dataclass(frozen=True, slots=True)
class Largest:
    """What was found."""

    key: str
    size: int
    """Of that setting; 0 if none fits."""
    exact: bool
    """Whether the next larger one does not fit, or cannot be."""
    probes: tuple[Probe, ...]


def largest_micro_batch(
    trainer: Trainer, tree: Path, request: Request, planned: Planned, told: Callable[[str], None] = lambda text: None
) -> Largest:
    """Double the size until it does not fit, and halve what is between.

    Only sizes that verl takes are planned: parts of a mini batch, and token budgets that hold whole sequences. Other
    phases may need more; their own micro batches have settings of their own.

    Raises:
        PlanError: as `plan`.
    """
    batch = _of_update(planned)
    sizes = _sizes(planned, batch)
    probes: dict[int, Probe] = {}
    fitting, failing = -1, len(sizes)
    at = max((index for index, size in enumerate(sizes) if size <= planned.settings.whole(batch.key, 1)), default=0)
    while failing - fitting > 1 and len(probes) < _MOST_PROBES:
        size = sizes[at]
        told(f"{batch.key}={size}")
        changed = dataclasses.replace(request, changes=(*request.changes, (batch.key, size)), model=planned.model)
        with progress.step(
            _("size {count}, of {most_probes} at most").format(count=len(probes) + 1, most_probes=_MOST_PROBES)
        ):
            probes[at] = _probe(size, planned, plan(trainer, tree, changed, told))
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


def _of_update(planned: Planned) -> MicroBatch:
    return next(batch for batch in planned.share.micro_batches if batch.phase in (Phase.UPDATE_ACTOR, Phase.TRAINING))


def _sizes(planned: Planned, batch: MicroBatch) -> Sequence[int]:
    share = planned.share
    if batch.dynamic:
        return [
            -(-sum(share.padded) * number // batch.sequence_parallel) for number in range(1, share.mini_sequences + 1)
        ]
    times = share.data if batch.together else 1
    # verl wants a mini batch to be a multiple of them.
    return [size * times for size in range(1, share.mini_sequences + 1) if share.mini_sequences % size == 0]


def _probe(size: int, before: Planned, planned: Planned) -> Probe:
    """Judge the phases whose micro batches have this size: a budget of the update is that of others by default."""
    update = _of_update(before)
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
