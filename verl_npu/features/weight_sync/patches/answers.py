"""A warning about answers that a rollout server generated with old weights.

In verl's v1 trainers, a server marks each answer with the training step of its latest weights, but verl never reads
the mark. The trainer hands out the prompts of step N only after the weights of step N - 1 have reached all servers. So
an answer with older weights comes from a server that missed a sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .... import environment, reporting
from ....errors import TransferError
from ....registry.source.probe import Defines, Never
from .. import weight_sync

answers = weight_sync.more()

_SAMPLED = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._materialize_batch"

Batch: TypeAlias = Any
"""TransferQueue's KVBatchMeta, which contains the keys and the tags of some answers and has no types."""
Tag: TypeAlias = Mapping[str, Any]


@answers.wrap(
    _SAMPLED,
    why="A rollout server that missed a weight sync answers with old weights, and training silently uses its answers. "
    "Upstream's staleness limit counts only from the step that handed out the prompt.",
    how="For each batch, we warn about answers with weights older than those that had reached all servers when the "
    "prompt was handed out. With VERL_NPU_OLD_ANSWERS=error, such answers end the job.",
    link="https://github.com/verl-project/verl/pull/7568",
    retired_by=Never("no revision compares the two steps"),
    requires=Defines(_SAMPLED),
)
def name_answers_by_old_weights(
    original: Callable[..., Batch], buffer: object, *args: object, **kwargs: object
) -> Batch:
    """Return a batch of answers, and warn about answers from old weights. With VERL_NPU_OLD_ANSWERS=error, raises
    TransferError instead."""
    batch = original(buffer, *args, **kwargs)
    ends = environment.OLD_ANSWERS.read() == "error"
    for error in old_answers(batch.tags, override=f"{environment.OLD_ANSWERS.name}=warn" if ends else ""):
        if ends:
            raise error
        reporting.warn(str(error))
    return batch


def old_answers(tags: Sequence[Tag], override: str = "") -> Iterator[TransferError]:
    """Yield an error for each version of the weights that still generated answers after newer weights should have
    replaced it. A version is the training step that computed the weights, or None if the step is unknown."""
    given = [tag for tag in tags if "min_global_steps" in tag and not tag.get("is_padding")]
    old: dict[int | None, list[Tag]] = {}
    for tag in given:
        version = tag["min_global_steps"]
        if version is None or version < tag["global_steps"] - 1:
            old.setdefault(version, []).append(tag)
    for version, late in old.items():
        first = min(tag["global_steps"] for tag in late)
        yield TransferError(
            subject=f"{len(late)} of {len(given)} answers (the first of them is for a prompt of step {first})",
            expected=f"answers generated with the weights of step {first - 1} or newer",
            found=f"answers with the weights of {'an unknown step' if version is None else f'step {version}'}",
            fix="check the rollout servers for errors and restarts, because one of them has missed a weight sync",
            override=override,
        )
