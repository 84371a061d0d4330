"""How the data of fine-tuning is divided among the ranks that torchrun starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import PlanError
from ...rehearse.settings import Settings
from ...rehearse.trainer import Trainer
from ..lengths import Length
from ..micro import MicroBatch
from ..phase import Phase
from ..share import Share, cut_to, divided, given, kinds, positive
from .names import MAX_LENGTH, MICRO, SEQUENCES, TOKENS, Names

__all__ = ["tuning_share"]


def tuning_share(
    names: Names,
    trainer: Trainer,
    settings: Settings,
    response: int | None,
    prompt: int | None,
    measured: Sequence[Length],
    bounded: bool = False,
) -> Share:
    """Divide a step of fine-tuning. A sequence is prompt and answer together: only the sum of their lengths counts.

    Raises:
        PlanError: sizes do not divide each other as the trainer wants it, or one is missing.
    """
    world = trainer.ranks * trainer.nodes
    inner = max(settings.whole(names.ulysses, 1), 1)
    data = divided(world, inner, "--nnodes x --nproc_per_node of torchrun")
    batches = _micro_batches(names, settings, inner, bounded)
    most = positive(settings, MAX_LENGTH)
    step = _of_rank(names, settings, data, batches[0])
    notes: list[str] = []
    if inner > 1 and names.engines and not settings.truth(names.packed):
        notes.append(f"{names.packed} is off, and verl shares packed sequences only: each NPU computes whole ones")
    if (measured or prompt or response) and not _packed(names, settings, inner):
        notes.append("each sequence is padded to data.max_length, whatever its length")
        measured, prompt, response = (), None, None
    cut: list[Length] = []
    if measured:
        cut, told = cut_to((0, _budget(batches[0], most)), [(0, sum(each)) for each in measured])
        notes += told
        longest = math.ceil(sum(map(sum, cut)) / len(cut))
    else:
        asked = min(most, (prompt or 0) + (response or most))
        longest = _budget(batches[0], asked)
        if longest < asked:
            notes.append(
                f"a sequence of {asked} tokens is longer than the token budget of {longest}: sequences of {longest} "
                "tokens are planned"
            )
    shorter = not (measured or prompt or response)
    chosen = given(batches, step, (0, longest), cut, shorter)
    notes += chosen.notes
    return Share(
        world=world,
        local=trainer.ranks,
        inner=inner,
        data=data,
        ranks=(0,),
        kinds=kinds(world, 1),
        prompt=0,
        response=longest,
        longest=most,
        padded=(0, most if cut or not _packed(names, settings, inner) else longest),
        sequences=chosen.sequences,
        scored=chosen.sequences,
        step_sequences=step,
        mini_sequences=step,
        micro_batches=batches,
        lengths=chosen.lengths,
        scored_lengths=chosen.lengths,
        budgets=chosen.budgets,
        notes=tuple(notes),
    )


def _packed(names: Names, settings: Settings, inner: int) -> bool:
    """Whether padding is left out. The trainer without engines pads unless ranks share a sequence."""
    return names.engines or (inner > 1 and settings.truth(names.packed))


def _micro_batches(names: Names, settings: Settings, inner: int, bounded: bool) -> tuple[MicroBatch, ...]:
    if names.engines and settings.truth("data.use_dynamic_bsz"):
        key, dynamic = TOKENS, True
    else:
        key, dynamic = MICRO, False
    size = positive(settings, key)
    return tuple(
        MicroBatch(phase, key, dynamic, size, inner, bounded=bounded and dynamic)
        for phase in (Phase.TRAINING, Phase.VALIDATION)
    )


def _of_rank(names: Names, settings: Settings, data: int, batch: MicroBatch) -> int:
    """Return the sequences that a rank has in a step."""
    together = positive(settings, SEQUENCES)
    # fsdp_sft_trainer.py, `_normalize_config_bsz`; with engines a micro batch may be smaller than others.
    part = data if names.engines else data * batch.size
    if together % part:
        wanted = f"{data} ranks with data of their own" + ("" if names.engines else f" x {batch.key}={batch.size}")
        raise PlanError(
            subject=f"{SEQUENCES}={together}",
            expected=f"a multiple of {part}: {wanted}",
            found=f"{together % part} sequences too many",
            fix="change it, the micro batch or the NPUs",
        )
    return together // data


def _budget(batch: MicroBatch, longest: int) -> int:
    """Return the tokens of the longest sequence that a micro batch has room for."""
    return min(longest, batch.size * batch.inner) if batch.dynamic else longest
