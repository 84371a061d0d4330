"""Which scores of an attention take part: the sparse modes of op-plugin's attention operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["TEMPLATE", "UNBOUNDED", "Rule", "SparseMode", "check_prefix", "rule_of"]

UNBOUNDED = 2147483647
TEMPLATE = 2048  # side of the mask that the compressed modes take


class SparseMode(IntEnum):
    """Which scores take part; i is the query's row, j the key's column."""

    DEFAULT = 0  # not masked, j-i <= next_tockens and i-j <= pre_tockens
    ALL = 1  # not masked
    LEFT_UP_CAUSAL = 2  # j <= i
    RIGHT_DOWN_CAUSAL = 3  # j <= i + Skv-Sq
    BAND = 4  # as DEFAULT, counted from the bottom right corner
    PREFIX = 5  # RIGHT_DOWN_CAUSAL or j < prefix; the mask shows it whole
    PREFIX_COMPRESSED = 6  # the same with a template
    VARLEN_OUTER_CUT = 7  # BAND for the last sequence, RIGHT_DOWN_CAUSAL for the others
    VARLEN_INNER_CUT = 8  # BAND for the first sequence, LEFT_UP_CAUSAL for the others


_PREFIXED = (SparseMode.PREFIX, SparseMode.PREFIX_COMPRESSED)
_GIVEN = (SparseMode.DEFAULT, SparseMode.ALL, SparseMode.PREFIX)  # the mask is the scores' own, and not a template
_TEMPLATES = {SparseMode.PREFIX_COMPRESSED: (3072, 2048)}


@dataclass(frozen=True, slots=True)
class Rule:
    """The mask of a call, not yet bound to a block's size."""

    mode: SparseMode
    mask: Tensor | None
    before: int
    after: int
    prefix: Sequence[int] | None = None

    def of_sequence(self, number: int, count: int, rows: int, columns: int) -> Rule:
        """The rule of one sequence of a packed batch."""
        mode = self.mode
        if mode is SparseMode.VARLEN_OUTER_CUT:
            mode = SparseMode.BAND if number == count - 1 else SparseMode.RIGHT_DOWN_CAUSAL
        elif mode is SparseMode.VARLEN_INNER_CUT:
            mode = SparseMode.BAND if number == 0 else SparseMode.LEFT_UP_CAUSAL
        mask = self.mask
        if mask is not None and mode in _GIVEN:
            mask = mask[:rows, :columns]
        prefix = None if self.prefix is None else self.prefix[number : number + 1]
        return Rule(mode, mask, self.before, self.after, prefix)

    def keep(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Bool [.., rows, columns], True where a score takes part; None if all do.

        Without a mask the mode is ignored, causal ones too: that is documented, and attends to the future.
        """
        if self.mask is None:
            return None
        given = ~self.mask.bool()
        if self.mode is SparseMode.ALL:
            return given
        i = torch.arange(rows, device=device).unsqueeze(1)
        j = torch.arange(columns, device=device).unsqueeze(0)
        shift = columns - rows
        if self.mode is SparseMode.DEFAULT:
            if self.before >= rows and self.after >= columns:
                return given
            return given & (j - i <= self.after) & (i - j <= self.before)
        if self.mode in _PREFIXED and self.prefix is not None:
            lengths = torch.tensor(list(self.prefix), device=device).view(-1, 1, 1, 1)
            kept = (j <= i + shift) | (j < lengths)
            return kept & given if self.mode is SparseMode.PREFIX else kept
        # From here on the mask is a template whose content is implied.
        if self.mode is SparseMode.LEFT_UP_CAUSAL:
            return j <= i
        if self.mode is SparseMode.RIGHT_DOWN_CAUSAL:
            return j <= i + shift
        return (j - i - shift <= self.after) & (i + shift - j <= self.before)


def rule_of(
    number: int, mask: Tensor | None, before: int, after: int, prefix: Sequence[int] | None, *, packed: bool
) -> Rule:
    """The rule that a call asks for.

    Raises:
        RuntimeError: there is no such sparse mode, not for a packed batch (TND), or the mask does not fit it.
    """
    rule = Rule(_mode(number, packed), mask, int(before), int(after), prefix)
    _check_mask(rule, packed)
    return rule


def _mode(number: int, packed: bool) -> SparseMode:
    last = 8 if packed else 6
    if not 0 <= number <= last or (packed and number == 5):
        expected = "[0,5) or (5,8]" if packed else "[0,6]"
        raise RuntimeError(
            f"npu_fusion_attention: the sparse_mode value must be in range of {expected}, but got {number}"
        )
    return SparseMode(number)


def _check_mask(rule: Rule, packed: bool) -> None:
    mask = rule.mask
    if mask is None:
        return
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(f"npu_fusion_attention: atten_mask must be bool or uint8, but is {mask.dtype}")
    template = _TEMPLATES.get(rule.mode, (TEMPLATE, TEMPLATE))
    if rule.mode not in _GIVEN and tuple(mask.shape[-2:]) != template:
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} takes an atten_mask of {template[0]}x{template[1]}, "
            f"but got {tuple(mask.shape)}"
        )
    if packed and mask.dim() != 2:
        raise RuntimeError(f"npu_fusion_attention: TND takes an atten_mask of 2 dimensions, but got {mask.dim()}")


def check_prefix(rule: Rule, sequences: int) -> None:
    """Raise RuntimeError if a prefix mode lacks a prefix for each sequence."""
    if rule.mode not in _PREFIXED or rule.mask is None:
        return
    if rule.prefix is None or len(rule.prefix) != sequences or sequences > 32:
        found = "none" if rule.prefix is None else f"{len(rule.prefix)}"
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} takes a prefix for each of at most 32 sequences, but "
            f"got {found} for {sequences}"
        )
