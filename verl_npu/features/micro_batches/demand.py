"""What one call of upstream's rearrange_micro_batches asks for: lengths of sequences, and a budget, in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...errors import MicroBatchError
from .packing import Bins, check_count, pack, spread

if TYPE_CHECKING:
    import torch

__all__ = ["Batch", "Demand"]

_MARK = 1 << 40
"""Added to the length of a sequence that is too long, in place of a number of micro-batches: above any of those."""


class Batch(Protocol):
    """A batch of upstream: a TensorDict."""

    def keys(self) -> Iterable[str]: ...

    def __getitem__(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Demand:
    """Sequences to split, by their lengths in tokens; or groups of `together` sequences, which stay together."""

    lengths: Sequence[int]
    together: int
    budget: int
    longest: int
    """The length that upstream compares with the budget: of padded sequences it is their width, padding included."""
    packed: Bins
    """Bins within the budget; none if a sequence alone is too long."""

    @classmethod
    def of(cls, batch: Batch, budget: int, together: int) -> Demand | None:
        """Return what is asked for; none if there is nothing to split, or nothing that upstream would split."""
        lengths, width = _lengths(batch)
        if not lengths or len(lengths) % together:
            return None
        grouped = [sum(lengths[first : first + together]) for first in range(0, len(lengths), together)]
        longest = max(width, *grouped)
        return cls(grouped, together, budget, longest, pack(grouped, budget) if longest <= budget else [])

    @property
    def fits(self) -> bool:
        """Whether each sequence alone is within the budget."""
        return self.longest <= self.budget

    @property
    def least(self) -> int:
        """The least number of micro-batches; a mark for all ranks if a sequence is too long."""
        return len(self.packed) if self.fits else _MARK + self.longest

    @property
    def allowed(self) -> int:
        """The budget that upstream is told, with which it gets as far as agreeing with the other ranks."""
        return max(self.budget, self.longest)

    def check_agreed(self, agreed: int, rounded: int) -> None:
        """Raise MicroBatchError if a rank has a sequence that is too long, or this one too few sequences."""
        if agreed > _MARK:
            raise self._too_long(agreed - _MARK)
        check_count(rounded, self.packed, self.lengths, self.budget)

    def split(self, count: int, weights: Sequence[int]) -> Bins:
        """Return `count` bins within the budget. Raises MicroBatchError as `check_agreed` does."""
        if not self.fits:
            raise self._too_long(self.longest)
        if len(weights) != len(self.lengths):
            raise self._unknown(f"a partition of {len(weights)} sequences or groups instead of {len(self.lengths)}")
        return spread(self.packed, self.lengths, self.budget, count, weights)

    def check_result(self, indices: Bins) -> None:
        """Raise MicroBatchError if a micro-batch of upstream's exceeds the budget after all."""
        # Sequences that stay together do so in the result as well: each of them stands for its share.
        most = max(sum(self.lengths[index // self.together] for index in one[:: self.together]) for one in indices)
        if most > self.budget:
            raise self._unknown(f"one of {most}")

    def _too_long(self, length: int) -> MicroBatchError:
        kind = "a sequence" if self.together == 1 else f"{self.together} sequences that must stay together"
        found = f"{kind} of {length} tokens, padding included" if not self.fits else ""
        return MicroBatchError(
            subject=f"micro-batches of at most {self.budget} tokens",
            expected="each sequence alone to fit",
            found=found or f"a sequence of {length} tokens on another rank",
            fix="raise the *_max_token_len_per_gpu of this worker (the budget is that, times the size of its sequence "
            "parallelism), or lower data.max_prompt_length or data.max_response_length",
        )

    def _unknown(self, found: str) -> MicroBatchError:
        return MicroBatchError(
            subject="verl.utils.seqlen_balancing:rearrange_micro_batches",
            expected=f"micro-batches of at most {self.budget} tokens",
            found=found,
            fix="this verl splits batches in another way than those that verl-npu knows: report it",
            override="VERL_NPU_TOKEN_BUDGET=0",
        )


def _lengths(batch: Batch) -> tuple[list[int], int]:
    """Return the length of each sequence, and the one that upstream compares with the budget."""
    sequences = batch["input_ids"] if "input_ids" in batch.keys() else None  # noqa: SIM118  # a TensorDict is no dict
    if sequences is not None and sequences.is_nested:
        nested: list[int] = sequences.offsets().diff().tolist()
        return nested, max(nested, default=0)
    mask = batch["attention_mask"]
    return mask.sum(dim=1).long().tolist(), mask.shape[-1]
