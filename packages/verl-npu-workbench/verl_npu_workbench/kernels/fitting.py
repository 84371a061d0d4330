"""For a kernel that overflows, the blocks nearest to its author's with which it compiles."""

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
_LEAST = 16
"""The smallest side that the compiler's matrix products take."""
_AT_ONCE = 2
_OVERFLOWS = (Verdict.OVERFLOWS, Verdict.MAY_OVERFLOW)


def fit(target: Target, judged: Sequence[Judged], request: Request) -> list[Judged]:
    """Return the kernels, those that overflow with the blocks that fit; each was compiled.

    Raises:
        SandboxError: there can be no sandbox here.
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
    """Search nearest first, until all that is as near as the first that fits has been tried."""
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
            # What an overflow has shown leaves out others of this level.
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
    """Return the blocks to try, each with how often its sides were halved, fewest first.

    To halve one side halves a buffer at most, so what is less often halved than it needs too much is left out.
    """
    sides = blocks_of(arguments)
    halvings = [range(max(0, (value // _LEAST).bit_length() - 1) + 1) for value in sides.values()]
    least = halvings_needed(outcome)
    found = [
        (sum(each), {name: value >> times for (name, value), times in zip(sides.items(), each, strict=True)})
        for each in itertools.product(*halvings)
        if sum(each) >= least
    ]
    # Of those that are as near, the ones that halve one side least often: the shape stays as it was.
    return sorted(found, key=lambda each: (each[0], max(sides[name] // side for name, side in each[1].items())))


def blocks_of(arguments: Arguments) -> Blocks:
    """Return the constants that are sides of blocks: those of its configuration, else those that are called so."""
    set_by_configuration = {part.partition("=")[0] for part in arguments.label.split(", ") if part}
    return {
        name: value
        for name, value in arguments.constants.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and value > _LEAST
        and name not in arguments.signature
        and _BLOCK.search(name)
        and (not set_by_configuration or name in set_by_configuration)
    }


def halvings_needed(outcome: Outcome) -> int:
    """Return how often sides have to be halved at least: each time halves a buffer at most."""
    ratio = outcome.needed / outcome.there if outcome.there else 1.0
    return max(1, math.ceil(math.log2(ratio))) if ratio > 0 else 1


def _overflows_too(blocks: Blocks, refused: Blocks, needed: int) -> bool:
    """Whether blocks overflow as others did: they are larger, or too few halvings smaller."""
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
