"""Divides a step's data among a script's ranks, and chooses the ranks that stand for all others.

For each phase, it finds the setting that determines the size of micro batches, and the smallest number of sequences
that still produces the largest micro batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_npu import environment
from verl_npu.errors import PlanError
from verl_npu.features.micro_batches import BOUNDED_UPSTREAM
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree

from ..jobs.keys import (
    ACTOR,
    BATCH,
    CRITIC,
    MAX_PROMPT,
    MAX_RESPONSE,
    MINI_BATCH,
    NODES,
    NPUS,
    PACKED,
    REFERENCE,
    ROLLOUT,
    SAMPLES,
    has_critic,
    has_reference,
    size,
)
from ..jobs.layout import Parallelism, parallelism_of
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer
from .job import Phase
from .lengths import Length, heaviest

_VERL = ("verl",)
_DEEPEST = 2
"""The number of micro batches in a phase of a plan. The second one runs while the gradients of the first are in
memory."""
_ALMOST = 0.97
"""Fewer long sequences are preferred to many short ones if they reach this fraction of the largest number of
tokens."""
_UNEVEN = 4
"""The number of micro batches in a phase of a plan if lengths differ, because verl balances them over a whole mini
batch."""
_MANY = 8
"""The most micro batches that a plan runs with sequences of equal length. More would take minutes."""


def keeps_budget(trainer: Trainer, tree: Path) -> bool:
    """Return whether micro batches never exceed their token budget. Either the script's verl version or
    VERL_NPU_TOKEN_BUDGET=1 ensures this.

    Otherwise, verl divides the total number of tokens by the budget to get the number of micro batches. The sequences
    do not always fit into that number, so some micro batches exceed the budget.
    """
    asked = environment.TOKEN_BUDGET.read({**os.environ, **trainer.exports})
    source = verl_of(tree)
    return asked or bool(BOUNDED_UPSTREAM.answer(lambda atom: atom.holds(source)))


def verl_of(tree: Path) -> SourceTree:
    """Return the source of the tree's verl, or of the installed verl if the tree has none."""
    # A folder named verl may be a clone of the repository instead of the package.
    has_verl = (tree / _VERL[0] / "__init__.py").is_file()
    return SourceTree.at(tree, _VERL) if has_verl else SourceTree.installed(_VERL)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The size of the micro batches of one phase."""

    phase: Phase
    key: str
    """The setting that determines their size."""
    dynamic: bool
    """Whether a token budget limits the micro-batches, instead of a number of sequences."""
    size: int
    """The number of sequences per micro batch. If `dynamic` is true, the number of tokens on one NPU."""
    sequence_parallel: int
    """The number of NPUs that share a sequence."""
    together: bool = False
    """Whether the setting gives the number of sequences over all ranks, instead of on one."""
    bounded: bool = False
    """Whether micro batches never exceed their token budget."""

    @property
    def budget(self) -> int:
        """The token budget of a dynamic micro batch. It is the sum of the budgets of all NPUs that share a
        sequence."""
        return self.size * self.sequence_parallel

    def sequences(self, length: int, of: int) -> int:
        """Return the number of sequences in the largest micro batch, given `of` sequences with `length` tokens each.
        verl creates as few dynamic micro batches as the tokens allow, and divides the sequences evenly among
        them. Unless `bounded` is true, some micro batches can exceed the token budget. Source:
        verl/utils/seqlen_balancing.py, `rearrange_micro_batches`."""
        if not self.dynamic:
            return min(self.size, of)
        return -(-of // min(self.number(length, of), of))

    def number(self, length: int, of: int) -> int:
        """Return the number of micro batches, given `of` sequences with `length` tokens each."""
        if not self.dynamic:
            return -(-of // self.size)
        if self.bounded:
            return -(-of // max(self.budget // length, 1))
        return -(-of * length // max(self.budget, 1))

    def widened(self, length: int, of: int) -> MicroBatch:
        """Return a copy whose budget holds the largest micro batch, given `of` sequences with `length` tokens each.
        The largest micro batch may exceed the original budget."""
        if not self.dynamic:
            return self
        return replace(self, size=max(self.size, -(-self.sequences(length, of) * length // self.sequence_parallel)))


@dataclass(frozen=True, slots=True)
class Share:
    """The trainer's ranks, and the number of tokens and sequences that each rank gets."""

    world: int
    local: int
    """The number of ranks on a node."""
    sequence_parallel: int
    """The number of ranks that share a sequence."""
    data: int
    """The data-parallel size: the number of ranks, or groups of ranks, that have different data."""
    ranks: tuple[int, ...]
    """The ranks that are run, one for each kind."""
    kinds: Mapping[int, str]
    """From each rank that is run to a description of the ranks that it stands for."""
    prompt: int
    response: int
    """The number of tokens of each prompt and answer. If lengths differ, it is their mean."""
    longest: int
    """The number of tokens of the longest answer that the script allows."""
    padded: Length
    """The number of tokens that prompts and answers are padded to."""
    sequences: int
    """The number of sequences that a rank trains on in the plan."""
    scored: int
    """The number of sequences whose log-probabilities and values a rank computes in the plan."""
    step_sequences: int
    """The number of sequences that a rank has in a real step."""
    mini_sequences: int
    """The number of sequences that a rank processes between two steps of the optimizer."""
    micro_batches: tuple[MicroBatch, ...]
    lengths: tuple[Length, ...] = ()
    """Lengths of the sequences to train on, if they differ."""
    scored_lengths: tuple[Length, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Token budgets that the plan raises so that a few sequences make a micro batch as large as the real job's."""
    notes: tuple[str, ...] = ()

    @property
    def length(self) -> str:
        """The number of tokens in a sequence, as text for the report. If prompt and answer are counted separately, the
        text contains both numbers."""
        return f"{self.prompt} + {self.response}" if self.prompt else str(self.response)

    def overdrawn(self, batch: MicroBatch) -> float:
        """Return the ratio of the number of tokens in the largest micro batch to the token budget, assuming that all
        sequences have the same length."""
        if not batch.dynamic:
            return 1.0
        trains = batch.phase.trains
        lengths, of = (self.lengths, self.mini_sequences) if trains else (self.scored_lengths, self.step_sequences)
        length = sum(lengths[0]) if len(set(lengths)) == 1 else self.prompt + self.response
        return batch.sequences(length, of) * length / batch.budget


def share_of(
    settings: Settings,
    response: int | None = None,
    prompt: int | None = None,
    measured: Sequence[Length] = (),
    bounded: bool = False,
) -> Share:
    """Divide the work of a reinforcement learning step among the ranks. A length that is not specified defaults to the
    maximum that the script allows.

    Args:
        settings: the script's settings.
        response: the number of tokens of a response.
        prompt: the number of tokens of a prompt.
        measured: measured or sampled sequence lengths, which replace `prompt` and `response`.
        bounded: whether micro batches stay within their token budgets.

    Raises:
        PlanError: the parallel sizes do not divide the number of NPUs, or a length is missing.
    """
    local = positive(settings, NPUS)
    world = local * positive(settings, NODES)
    sizes = parallelism_of(settings)
    data = replicas_of(world, sizes, f"{NODES} x {NPUS}")
    prompts = positive(settings, BATCH)
    answers = size(settings, SAMPLES)
    return divided(
        local=local,
        world=world,
        sizes=sizes,
        most=(positive(settings, MAX_PROMPT), positive(settings, MAX_RESPONSE)),
        batches=micro_batches(settings, data, bounded),
        step=max(prompts * answers // data, 1),
        mini=max(settings.whole(MINI_BATCH, prompts) * answers // data, 1),
        padded=""
        if settings.truth(PACKED)
        else _("use_remove_padding is off, so a shorter sequence needs as much memory as the longest sequence"),
        response=response,
        prompt=prompt,
        measured=measured,
    )


def divided(
    *,
    world: int,
    local: int,
    sizes: Parallelism,
    most: Length,
    batches: tuple[MicroBatch, ...],
    step: int,
    mini: int,
    padded: str,
    response: int | None,
    prompt: int | None,
    measured: Sequence[Length],
    notes: Sequence[str] = (),
) -> Share:
    """Divide the work of one training step among the ranks, for any trainer.

    Args:
        world, local: the number of ranks in total and on a node.
        sizes: the parallel sizes.
        most: the longest prompt and response; the prompt is 0 if only the length of a whole sequence counts.
        batches: the micro batches of each phase.
        step, mini: the number of sequences per rank in a training step, and in a mini batch (one optimizer step).
        padded: a note for the user that lengths have no effect, because the model also computes padding tokens. An
            empty string if the model does not compute padding tokens.
        response, prompt: the lengths that the user specified.
        measured: measured or sampled lengths.
        notes: notes for the user so far.

    Raises:
        PlanError: a token budget is too small for a response.
    """
    told = list(notes)
    if padded and (measured or prompt is not None or response is not None):
        told.append(padded)
        measured, prompt, response = (), None, None
    # Shorter sequences are no option if the user names lengths, or if padding is computed like tokens.
    shorter = not (padded or measured or prompt is not None or response is not None)
    budget = min((batch.budget for batch in batches if batch.dynamic), default=sum(most))
    cut: list[Length] = []
    if measured:
        cut = _cut_to(most, budget, measured, told)
        prompts, answers = zip(*cut, strict=True)
        one = (math.ceil(sum(prompts) / len(cut)), math.ceil(sum(answers) / len(cut)))
    else:
        one = _greatest(most, budget, prompt, response, told)
    training, scoring = ([each for each in batches if each.phase.trains is trains] for trains in (True, False))
    trained = _given(training, mini, one, cut, shorter, sizes.multiple)
    scored = _given(scoring, step, one, cut, shorter, sizes.multiple, trained.budgets)
    run = _kinds(world, sizes.pipeline)
    return Share(
        world=world,
        local=local,
        sequence_parallel=sizes.sharing,
        data=sizes.replicas(world),
        ranks=tuple(sorted(run)),
        kinds=run,
        prompt=one[0],
        response=one[1],
        longest=most[1],
        padded=most if cut else one,
        sequences=trained.sequences,
        scored=scored.sequences,
        step_sequences=step,
        mini_sequences=mini,
        micro_batches=batches,
        lengths=trained.lengths,
        scored_lengths=scored.lengths,
        budgets=scored.budgets,
        notes=(*told, *dict.fromkeys((*trained.notes, *scored.notes))),
    )


def replicas_of(world: int, sizes: Parallelism, whence: str) -> int:
    """Return the data-parallel size. `whence` names the settings that determine the number of NPUs.

    Raises:
        PlanError: the number of NPUs is not a multiple of the product of the parallel sizes.
    """
    if sizes.divides(world):
        return sizes.replicas(world)
    raise PlanError(
        subject=_("the parallel sizes"),
        expected=_("parallel sizes whose product divides the number of NPUs, {world} ({whence})").format(
            world=world, whence=whence
        ),
        found=str(sizes.replica),
        fix=_("change the parallel sizes or the number of NPUs"),
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """The sequences that a rank's phases get, with their lengths if the lengths differ from the greatest."""

    sequences: int
    lengths: tuple[Length, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Token budgets that the plan raises for these sequences."""
    notes: tuple[str, ...] = ()


def _given(
    batches: Sequence[MicroBatch],
    of: int,
    one: Length,
    cut: Sequence[Length],
    shorter: bool,
    multiple: int,
    raised: Mapping[str, int] | None = None,
) -> _Given:
    """Return sequences that produce the largest micro batch of each phase.

    Args:
        batches: the micro batches of each phase.
        of: the number of sequences that a rank has.
        one: the greatest length, or the mean if lengths differ.
        cut: if lengths differ, the lengths, truncated as the script truncates them.
        shorter: whether sequences may be shorter if that makes larger micro batches.
        multiple: the number of tokens that must divide the length of a sequence.
        raised: budgets that have already been raised.
    """
    if cut:
        sequences = enough(batches, sum(one), of, alike=False)
        limits = [batch.budget for batch in batches if batch.dynamic and batch.budget > 0]
        return _Given(sequences, heaviest(cut, sequences, limits))
    length = fullest(batches, sum(one), of) if shorter else sum(one)
    length = max(length - length % multiple, 1)
    sequences = enough(batches, length, of, alike=True)
    budgets = dict(raised or {})
    notes = []
    if length <= sum(one) - multiple:
        notes.append(
            _(
                "the plan's sequences have {length} tokens instead of the {one} that the script allows, "
                "because several of the shorter sequences fill a token budget, while one of the longest "
                "leaves a part of the budget empty"
            ).format(length=length, one=sum(one))
        )
    if any(batch.dynamic and batch.number(length, sequences) > _MANY for batch in batches):
        wide = [batch.widened(length, of) for batch in batches]
        sequences = enough(wide, length, of, alike=True)
        for before, after in zip(batches, wide, strict=True):
            if after.size > budgets.get(after.key, before.size):
                budgets[after.key] = after.size
                notes.append(_overdrawn(before, after.size, length, of))
    prompt = min(one[0], max(length // 2, 1))
    lengths = () if length == sum(one) else ((prompt, length - prompt),) * sequences
    return _Given(sequences, lengths, budgets, tuple(notes))


def _overdrawn(batch: MicroBatch, size: int, length: int, of: int) -> str:
    return _(
        "verl divides {of} sequences evenly, so a micro-batch of {phase} can have {sequences} tokens "
        "instead of {budget}. The plan shows this with few sequences and {key}={size}. "
        "{token_budget}=1 keeps micro-batches within their budget"
    ).format(
        of=of,
        phase=batch.phase.value,
        sequences=batch.sequences(length, of) * length,
        budget=batch.budget,
        key=batch.key,
        size=size,
        token_budget=environment.TOKEN_BUDGET.name,
    )


def _cut_to(most: Length, budget: int, measured: Sequence[Length], notes: list[str]) -> list[Length]:
    """Return the measured lengths, truncated to the script's limits. Notes for the user are added to `notes`."""
    if not most[0]:
        measured = [(0, sum(each)) for each in measured]
        most = (0, min(most[1], budget))
    cut = [(min(prompt, most[0]), min(response, most[1])) for prompt, response in measured]
    notes.append(
        _("a rank gets those consecutive sequences, of all {count}, that fill its micro-batches most").format(
            count=len(measured)
        )
    )
    longer = sum(before != after for before, after in zip(measured, cut, strict=True))
    if longer:
        notes.append(_("{longer} sequences are longer than the script allows and are cut").format(longer=longer))
    return cut


def _greatest(most: Length, budget: int, prompt: int | None, response: int | None, notes: list[str]) -> Length:
    """Return the length that all sequences get. Add a note if it differs from the length that the user asked for."""
    if not most[0] and prompt is not None:
        response = prompt + (most[1] if response is None else response)
    asked = (
        most[0] if prompt is None else min(prompt, most[0]),
        most[1] if response is None else min(response, most[1]),
    )
    if sum(asked) <= budget:
        return asked
    if asked[0] >= budget:
        raise PlanError(
            subject=_("the token budget"),
            expected=_("a token budget that is large enough for a prompt of {asked} tokens and a response").format(
                asked=asked[0]
            ),
            found=_("a total budget of {budget} tokens across all ranks that share a sequence").format(budget=budget),
            fix=_("raise the script's ppo_max_token_len_per_gpu and log_prob_max_token_len_per_gpu"),
        )
    notes.append(
        _(
            "a sequence of {asked} tokens exceeds the token budget of {budget}, so the plan uses "
            "{sequences} of {left} tokens"
        ).format(
            asked=sum(asked),
            budget=budget,
            sequences=_("answers") if most[0] else _("sequences"),
            left=budget - asked[0],
        )
    )
    return asked[0], budget - asked[0]


def _kinds(world: int, stages: int) -> dict[int, str]:
    """Return the ranks to run, each with a description of the ranks that it stands for."""
    if stages == 1:
        return {0: _("each of the {world} ranks").format(world=world)}
    each = world // stages
    middle = stages // 2
    named = {
        0: _("the first stage of the pipeline"),
        each * middle: _("stage {middle} of {stages}").format(middle=middle + 1, stages=stages),
    }
    return {**named, each * (stages - 1): _("the last stage of the pipeline")}


def positive(settings: Settings, key: str) -> int:
    """Return a setting that must be a positive number.

    Raises:
        PlanError: the setting is missing or not positive.
    """
    found = settings.whole(key)
    if found > 0:
        return found
    raise PlanError(
        subject=key,
        expected=_("a positive number"),
        found=settings.text(key) or _("none"),
        fix=_("set this value in the script"),
    )


def micro_batches(settings: Settings, data: int, bounded: bool = False) -> tuple[MicroBatch, ...]:
    """Return the micro batches of all phases of a script.

    Args:
        settings: the script's settings.
        data: the data-parallel size. A batch size that applies to all ranks together is divided by this number.
        bounded: whether micro batches stay within their token budgets.
    """
    rows = [
        (Phase.UPDATE_ACTOR, ACTOR, f"{ACTOR}.ppo", f"{ACTOR}.use_dynamic_bsz"),
        (Phase.LOG_PROB, ACTOR, f"{ROLLOUT}.log_prob", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    ]
    if has_reference(settings):
        rows.append((Phase.REFERENCE, REFERENCE, f"{REFERENCE}.log_prob", f"{REFERENCE}.log_prob_use_dynamic_bsz"))
    if has_critic(settings):
        dynamic = f"{CRITIC}.use_dynamic_bsz"
        rows.append((Phase.UPDATE_CRITIC, CRITIC, f"{CRITIC}.ppo", dynamic))
        rows.append((Phase.VALUES, CRITIC, f"{CRITIC}.forward", dynamic))
    found = [_of(settings, *row, data) for row in rows]
    return tuple(replace(batch, bounded=bounded and batch.dynamic) for batch in found)


def _of(settings: Settings, phase: Phase, role: str, prefix: str, dynamic: str, data: int) -> MicroBatch:
    sizes = parallelism_of(settings, role)
    shared = sizes.context * sizes.sequence
    tokens, each, together = (
        f"{prefix}_{name}" for name in ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "micro_batch_size")
    )
    if settings.truth(dynamic) and settings.whole(tokens) > 0:
        return MicroBatch(phase, tokens, True, settings.whole(tokens), shared)
    if settings.whole(each) <= 0 < settings.whole(together):
        part = max(settings.whole(together) // data, 1)
        return MicroBatch(phase, together, False, part, shared, together=True)
    return MicroBatch(phase, each, False, max(settings.whole(each, 1), 1), shared)


def fullest(found: Sequence[MicroBatch], longest: int, of: int) -> int:
    """Return the longest sequence length at which the token count of a batch's largest micro batch is at or near its
    maximum. The batch contains `of` sequences.

    This is not always the maximum length: slightly shorter sequences may all fit into one micro batch, whereas
    sequences of the maximum length are split into two smaller micro batches.
    """
    if not found or not all(batch.dynamic for batch in found):
        return longest

    def tokens(length: int) -> int:
        return max(batch.sequences(length, of) * length for batch in found)

    lengths = {longest}
    for batch in found:
        if batch.bounded:
            lengths |= {batch.budget // sequences for sequences in range(-(-batch.budget // longest), of)}
        else:
            lengths |= {number * batch.budget // of for number in range(1, batch.number(longest, of))}
    most = {length: tokens(length) for length in lengths if length > 0}
    return max(length for length, held in most.items() if held >= _ALMOST * max(most.values()))


def enough(found: Sequence[MicroBatch], length: int, most: int, alike: bool) -> int:
    """Return the smallest number of sequences that still produces the largest micro batch of each phase.

    Args:
        found: the micro batches of each phase.
        length: the number of tokens of a sequence, or the mean number if lengths differ.
        most: the number of sequences that a rank has in a mini batch (for training phases) or in a step (for other
            phases).
        alike: whether all sequences have the same length.
    """

    def shows(batch: MicroBatch, sequences: int) -> bool:
        if not batch.dynamic:
            return sequences % batch.size == 0 and sequences >= _DEEPEST * batch.size
        if not alike:
            return batch.number(length, sequences) >= _UNEVEN
        number, largest = batch.number(length, sequences), batch.sequences(length, sequences)
        # The number of micro batches of the largest size; the others have one sequence less.
        largest_ones = sequences - (largest - 1) * number
        return largest_ones >= _DEEPEST and largest == batch.sequences(length, most)

    return next((each for each in range(1, most) if all(shows(batch, each) for batch in found)), most)
