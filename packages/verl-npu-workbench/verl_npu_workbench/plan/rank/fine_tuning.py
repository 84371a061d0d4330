"""Runs verl's own fine-tuning trainer: two steps with generated batches, a validation, and a checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from ..fine_tuning import STEPS
from ..job import Phase, RankJob
from .recording import Recording
from .workers import TOKEN

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor

Row = Mapping[str, "Tensor"]
Begin = Callable[[Phase], None]


def fine_tune(config: DictConfig, job: RankJob, recording: Recording) -> None:
    """Run `run_sft` of the trainer that the job names, and record its phases.

    The trainer creates its own model, optimizer, and batches, and runs its own loop with generated rows of data. A new
    phase begins when the trainer requests the next batch, and when it saves a checkpoint. Source:
    verl/trainer/fsdp_sft_trainer.py and verl/trainer/sft_trainer.py, `run_sft` and `fit`.
    """
    trainer: Any = importlib.import_module(job.trainer)
    with ExitStack() as opened:

        def begin(phase: Phase) -> None:
            opened.close()
            opened.enter_context(recording.phase(phase))

        # The trainer creates the training data first.
        phases = iter((Phase.TRAINING, Phase.VALIDATION))
        padded = config.data.get("pad_mode") != "no_padding"
        trainer.create_sft_dataset = lambda *_, **__: Rows(job, padded, next(phases))
        trainer.StatefulDataLoader = partial(_Loader, begin)
        _record_checkpoints(trainer, begin)
        begin(Phase.LOAD)
        trainer.run_sft(config)


def _record_checkpoints(trainer: Any, begin: Begin) -> None:
    holder = getattr(trainer, "CheckpointHandler", None) or trainer.FSDPSFTTrainer
    original = holder.save_checkpoint

    def save_checkpoint(*given: object, **named: object) -> object:
        begin(Phase.CHECKPOINT)
        return original(*given, **named)

    holder.save_checkpoint = save_checkpoint


class Rows:
    """A rank's data in the format of verl's data sets: `input_ids`, `position_ids`, `loss_mask` [tokens].

    Rows are either padded to the greatest length, with an `attention_mask`, or exactly as long as their sequence.
    Source: verl/utils/dataset/multiturn_sft_dataset.py and sft_dataset.py, `__getitem__`.
    """

    def __init__(self, job: RankJob, padded: bool, phase: Phase) -> None:
        self.phase = phase
        self._padded = padded
        self._most = job.prompt + job.response
        # transformers drops a mask without padding, and attention then needs less memory. No real batch is like that.
        longest = self._most - 1 if padded else self._most
        self._lengths = [min(sum(each), longest) for each in job.lengths] or [longest] * job.sequences
        self._all = len(self._lengths) * job.world * STEPS

    def __len__(self) -> int:
        return self._all

    def __getitem__(self, place: int) -> Row:
        import torch

        length = self._lengths[place % len(self._lengths)]
        mask = (torch.arange(self._most if self._padded else length) < length).long()
        row = {
            "input_ids": mask * TOKEN,
            "position_ids": (mask.cumsum(dim=-1) - 1).clamp(min=0),
            "loss_mask": mask.clone(),
        }
        return row | {"attention_mask": mask} if self._padded else row


class _Loader:
    """A stand-in for torchdata's loader, which would start processes. All of its batches have the same rows."""

    def __init__(
        self,
        begin: Begin,
        dataset: Rows,
        batch_size: int,
        collate_fn: Callable[[Sequence[Row]], object] | None = None,
        **_: object,
    ) -> None:
        from torch.utils.data import default_collate

        self._begin, self._rows, self._size = begin, dataset, batch_size
        self._collate = collate_fn or default_collate

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[object]:
        for _ in range(STEPS):
            self._begin(self._rows.phase)
            yield self._collate([self._rows[place] for place in range(self._size)])

    def state_dict(self) -> dict[str, object]:
        """Return an empty state, because a plan is never resumed."""
        return {}
