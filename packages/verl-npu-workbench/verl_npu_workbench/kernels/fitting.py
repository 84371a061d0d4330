"""Finds block sizes that an overflowing kernel compiles with, as near as possible to the author's block sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from verl_npu import progress
from verl_npu.language import gettext as _

from . import judging, report
from .judging import Request
from .targets import Target
from .verdict import Arguments, Blocks, Judged, Kernel, Outcome, Verdict

_BLOCK = re.compile(r"BLOCK|TILE|CHUNK|^B[A-Z0-9]{1,2}$|^BLK", re.IGNORECASE)
_SMALLEST_SIDE = 16
"""The smallest side of a block that the compiler accepts in a matrix product."""
_AT_ONCE = 2
_OVERFLOWS = (Verdict.OVERFLOWS, Verdict.MAY_OVERFLOW)


def fit(target: Target, judged: Sequence[Judged], request: Request) -> list[Judged]:
    """For each kernel that overflows, find block sizes that fit. Return all judged kernels. Every block size that is
    reported has been compiled.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    left = [each for each in judged if each.best.verdict in _OVERFLOWS]
    if not left:
        return list(judged)
    found: dict[int, Judged] = {}
    with progress.step(_("looking for blocks that fit"), total=len(left), unit=_("kernels")) as step:
        for each in left:
            step.detail = each.kernel.name
            found[id(each)] = _fitted(target, each, request)
            step.done = len(found)
    return [found.get(id(each), each) for each in judged]


def _fitted(target: Target, judged: Judged, request: Request) -> Judged:
    """Try block sizes in order of their distance from the author's. Stop after the first distance that has block sizes
    that fit."""
    arguments, best = judged.arguments, judged.best
    if arguments is None:
        return judged
    fits: list[Blocks] = []
    refused: list[tuple[Blocks, int]] = []
    tried = 0
    for _distance, level in itertools.groupby(candidates(arguments, best), key=lambda each: each[0]):
        if fits:
            break
        waiting = [blocks for _unused, blocks in level]
        while waiting and tried < request.fit:
            # One overflow rules out other blocks of this level.
            waiting = [each for each in waiting if not any(_overflows_too(each, *other) for other in refused)]
            part, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            part = part[: request.fit - tried]
            for blocks, outcome in zip(part, _compiled(target, judged.kernel, arguments, part, request), strict=True):
                tried += 1
                if outcome.verdict is Verdict.COMPILES:
                    fits.append(blocks)
                elif outcome.verdict in _OVERFLOWS:
                    refused.append((blocks, halvings_needed(outcome)))
    return replace(judged, fits=tuple(fits), searched=tried)


def candidates(arguments: Arguments, outcome: Outcome) -> list[tuple[int, Blocks]]:
    """Return the block sizes to try, each with its number of halvings, fewest halvings first.

    Halving one dimension of a block at best halves the size of a buffer. Block sizes with too few halvings to prevent
    the buffer overflow in `outcome` are omitted.
    """
    sides = blocks_of(arguments)
    halvings = [range(max(0, (value // _SMALLEST_SIDE).bit_length() - 1) + 1) for value in sides.values()]
    least = halvings_needed(outcome)
    found = [
        (sum(each), {name: value >> times for (name, value), times in zip(sides.items(), each, strict=True)})
        for each in itertools.product(*halvings)
        if sum(each) >= least
    ]
    # At the same distance, prefer blocks that keep the shape: no side is halved much more often than the others.
    return sorted(found, key=lambda each: (each[0], max(sides[name] // side for name, side in each[1].items())))


def blocks_of(arguments: Arguments) -> Blocks:
    """Return the constants that are block dimensions: the constants that the configuration sets or, if it sets none,
    the constants whose names look like block sizes."""
    set_by_configuration = {part.partition("=")[0] for part in arguments.label.split(", ") if part}
    return {
        name: value
        for name, value in arguments.constants.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and value > _SMALLEST_SIDE
        and name not in arguments.signature
        and _BLOCK.search(name)
        and (not set_by_configuration or name in set_by_configuration)
    }


def halvings_needed(outcome: Outcome) -> int:
    """Return the smallest number of halvings that can prevent the buffer overflow in `outcome`. Each halving
    shrinks a buffer to half its size at best."""
    ratio = outcome.needed / outcome.there if outcome.there else 1.0
    return max(1, math.ceil(math.log2(ratio))) if ratio > 0 else 1


def _overflows_too(blocks: Blocks, refused: Blocks, needed: int) -> bool:
    """Return whether block sizes must overflow because the sizes `refused` overflowed: they are larger, or they are
    smaller by too few halvings."""
    if all(blocks[name] >= side for name, side in refused.items()):
        return True
    is_smaller = all(blocks[name] <= side for name, side in refused.items())
    return is_smaller and sum((side // blocks[name]).bit_length() - 1 for name, side in refused.items()) < needed


def _compiled(
    target: Target, kernel: Kernel, arguments: Arguments, blocks: Sequence[Blocks], request: Request
) -> Iterator[Outcome]:
    jobs = [
        (kernel, replace(arguments, constants={**arguments.constants, **each}, label=report.said_blocks(each)))
        for each in blocks
    ]
    yield from judging.outcomes(target, jobs, request)
