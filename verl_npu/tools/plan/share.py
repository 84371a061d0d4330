"""How a step's data and a script's ranks are divided, and which ranks stand for all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ... import environment
from ...errors import PlanError
from ..jobs.keys import BATCH, MAX_PROMPT, MAX_RESPONSE, MINI_BATCH, NODES, NPUS, PACKED, SAMPLES, size
from ..jobs.layout import Parallelism, parallelism_of
from ..jobs.settings import Settings
from .lengths import Length, heaviest
from .micro_batches import MicroBatch, enough, fullest, micro_batches

__all__ = ["Share", "divided", "positive", "replicas_of", "share_of"]

_SHORTER = "sequences are shorter where that fills a token budget that the longest ones would divide"
_MANY = 8
"""The most micro batches of sequences that are alike that a plan makes: more would take it minutes."""


@dataclass(frozen=True, slots=True)
class Share:
    """What each rank of the trainer gets. Tokens and sequences."""

    world: int
    local: int
    """Ranks on a node."""
    sequence_parallel: int
    """Ranks that share a sequence."""
    data: int
    """Ranks, or groups of ranks, with data of their own."""
    ranks: tuple[int, ...]
    """Those that are run: one for each kind."""
    kinds: Mapping[int, str]
    prompt: int
    response: int
    """Of each sequence, or their mean if they are not alike."""
    longest: int
    """Of an answer, as the script allows."""
    padded: Length
    """What prompts and answers are padded to."""
    sequences: int
    """Of a rank, to train on in a plan."""
    scored: int
    """Of a rank, whose log-probabilities and values are computed in a plan."""
    step_sequences: int
    """Of a rank, in a real step."""
    mini_sequences: int
    """Of a rank, between two steps of the optimizer."""
    micro_batches: tuple[MicroBatch, ...]
    lengths: tuple[Length, ...] = ()
    """Of those to train on, if they are not alike."""
    scored_lengths: tuple[Length, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Settings of tokens that a plan raises, to show with few sequences what many make."""
    notes: tuple[str, ...] = ()

    @property
    def length(self) -> str:
        """The tokens of a sequence, as a person reads them: a prompt's and an answer's, if they are told apart."""
        return f"{self.prompt} + {self.response}" if self.prompt else str(self.response)

    def overdrawn(self, batch: MicroBatch) -> float:
        """How many times the tokens of its budget a micro batch can have, with sequences of one length."""
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
    """Divide a step of reinforcement learning; lengths that are not given are the most that the script allows.

    Args:
        measured: lengths of sequences that there were or may be, in place of `prompt` and `response`.
        bounded: whether micro batches keep to their token budgets.

    Raises:
        PlanError: the parallel sizes do not divide the NPUs, or a length is missing.
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
        else "use_remove_padding is off, so that a shorter sequence takes as much as the longest one",
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
    """Divide a step of any trainer.

    Args:
        most: the longest prompt and answer; no prompt, if only the length of a whole sequence counts.
        step, mini: sequences of a rank in a step, and between two steps of the optimizer.
        padded: what the user is told of lengths that make no difference, as padding is computed; empty if it is not.

    Raises:
        PlanError: a token budget has no room for an answer.
    """
    told = list(notes)
    if padded and (measured or prompt is not None or response is not None):
        told.append(padded)
        measured, prompt, response = (), None, None
    # Lengths that the user names are kept, and padding takes as much as tokens where it is computed.
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
    trained = _given(training, mini, one, cut, shorter)
    scored = _given(scoring, step, one, cut, shorter, trained.budgets)
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
    """Return the ranks, or groups of them, with data of their own; `whence` says what tells the NPUs.

    Raises:
        PlanError: the NPUs are no multiple of the product of the parallel sizes.
    """
    if sizes.divides(world):
        return sizes.replicas(world)
    raise PlanError(
        subject="the parallel sizes",
        expected=f"a product that divides {world} NPUs ({whence})",
        found=str(sizes.replica),
        fix="change the sizes, or the NPUs",
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """What a rank's phases are given: sequences, and their lengths if they are not the greatest."""

    sequences: int
    lengths: tuple[Length, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Settings of tokens that are raised for that."""
    notes: tuple[str, ...] = ()


def _given(
    batches: Sequence[MicroBatch],
    of: int,
    one: Length,
    cut: Sequence[Length],
    shorter: bool,
    raised: Mapping[str, int] | None = None,
) -> _Given:
    """Return what shows the largest micro batch of each phase.

    Args:
        of: sequences that a rank has.
        one: the greatest length, or the mean one of those that are not alike.
        cut: those that are not alike, as the script cuts them.
        shorter: whether sequences may be shorter, where that is more tokens at once.
        raised: budgets that have been raised already.
    """
    if cut:
        sequences = enough(batches, sum(one), of, alike=False)
        return _Given(sequences, heaviest(cut, sequences))
    length = fullest(batches, sum(one), of) if shorter else sum(one)
    sequences = enough(batches, length, of, alike=True)
    budgets = dict(raised or {})
    notes = [_SHORTER] if length < sum(one) else []
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
    return (
        f"verl divides {of} sequences evenly, so that a micro batch of {batch.phase.value} can have "
        f"{batch.sequences(length, of) * length} tokens in place of {batch.budget}: a plan shows it with "
        f"few sequences and {batch.key}={size}. {environment.TOKEN_BUDGET.name}=1 keeps micro batches within their "
        "budget"
    )


def _cut_to(most: Length, budget: int, measured: Sequence[Length], notes: list[str]) -> list[Length]:
    """Return measured lengths as a script cuts them; `notes` are told of it."""
    if not most[0]:
        measured = [(0, sum(each)) for each in measured]
        most = (0, min(most[1], budget))
    cut = [(min(prompt, most[0]), min(response, most[1])) for prompt, response in measured]
    notes.append(
        f"of {len(measured)} sequences a rank is given those that follow each other and have the most tokens together"
    )
    longer = sum(before != after for before, after in zip(measured, cut, strict=True))
    if longer:
        notes.append(f"{longer} of them are longer than the script allows, and are cut")
    return cut


def _greatest(most: Length, budget: int, prompt: int | None, response: int | None, notes: list[str]) -> Length:
    """Return the length of all sequences; `notes` are told of what is not as the user asked."""
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
            subject="the token budget",
            expected=f"room for a prompt of {asked[0]} tokens and an answer",
            found=f"{budget} tokens on the ranks that share a sequence",
            fix="raise the script's ppo_max_token_len_per_gpu and log_prob_max_token_len_per_gpu",
        )
    notes.append(
        f"a sequence of {sum(asked)} tokens is longer than the token budget of {budget}: "
        f"{'answers' if most[0] else 'sequences'} of {budget - asked[0]} tokens are planned"
    )
    return asked[0], budget - asked[0]


def _kinds(world: int, stages: int) -> dict[int, str]:
    """Return whom each rank that is run stands for."""
    if stages == 1:
        return {0: f"each of the {world} ranks"}
    each = world // stages
    middle = stages // 2
    named = {0: "the first stage of the pipeline", each * middle: f"stage {middle + 1} of {stages}"}
    return {**named, each * (stages - 1): "the last stage of the pipeline"}


def positive(settings: Settings, key: str) -> int:
    """Return a setting that has to be a number above 0.

    Raises:
        PlanError: it is none.
    """
    found = settings.whole(key)
    if found > 0:
        return found
    raise PlanError(
        subject=key, expected="a number above 0", found=settings.text(key) or "none", fix="set it in the script"
    )
