"""Formats verdicts as JSON, and as the phrases that appear in the table and in other commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.findings import Status
from verl_npu.language import gettext as _

from .judging import Request
from .toolchain import BACK, FRONT, Pair
from .verdict import NOT_SHOWN, Arguments, Blocks, Judged, Outcome, Verdict, counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdicts of one run."""

    judged: tuple[Judged, ...]
    unread: Mapping[str, str]
    """Files that could not be read, with the reasons."""
    root: Path
    request: Request
    seconds: float


def status(result: Report) -> Status:
    """Return the exit status of a run. The status distinguishes three results: a kernel failed, no kernel failed, or
    no kernel could be judged."""
    verdicts = {each.best.verdict for each in result.judged}
    if any(verdict.fails for verdict in verdicts):
        return Status.FOUND
    return Status.FINE if verdicts - {Verdict.NOT_JUDGED} else Status.NOT_JUDGED


def stands_for(pair: Pair) -> str:
    """Return a description of the CANN release that corresponds to the compiler, including the differences between the
    two."""
    return _(
        "{front} belongs to CANN {cann} ({said_by}); {back} is released separately from CANN, and is newer or older "
        "than the bishengir-compile in your CANN."
    ).format(front=f"{FRONT} {pair.front}", cann=pair.cann, said_by=pair.said_by, back=f"{BACK} {pair.back}")


def shown(file: str, root: Path) -> str:
    """Return a file's path, relative to the root if the file is below it."""
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def said(outcome: Outcome, root: Path) -> str:
    """Describe the details of an outcome. Its verdict is not repeated."""
    if outcome.verdict in (Verdict.OVERFLOWS, Verdict.MAY_OVERFLOW):
        text = _("{buffer} needs {needed} bits but has only {there} ({kib} of {of} KiB)").format(
            buffer=outcome.buffer,
            needed=outcome.needed,
            there=outcome.there,
            kib=f"{outcome.needed / 8192:.1f}",
            of=f"{outcome.there / 8192:.0f}",
        )
        guesses = outcome.why
        return (
            _("{text}; these arguments are guessed: {guesses}").format(text=text, guesses=guesses) if guesses else text
        )
    if outcome.verdict is Verdict.COMPILES:
        return _("after an overflow, the compiler {did}").format(did=outcome.notes[-1]) if outcome.notes else ""
    file = shown(outcome.file, root)
    where = _("{file}, line {line}").format(file=file, line=outcome.line) if outcome.line else ""
    return ": ".join(filter(None, [outcome.stage.value if outcome.stage else "", where, outcome.why]))


def launched(arguments: Arguments) -> str:
    """Describe a launch by its pointer types and its grid, which distinguish launches of the same kernel."""
    types = " ".join(each for each in arguments.signature.values() if each.startswith("*"))
    return _("launched with {types}, grid {grid}").format(types=types, grid="x".join(map(str, arguments.grid)))


def fitted(judged: Judged) -> str:
    """Describe the block sizes that fit, or state that no block sizes fit."""
    if not judged.fits:
        return _("none of {count} smaller blocks fits").format(count=judged.searched)
    found = _("; ").join(said_blocks(each) for each in judged.fits)
    return _("fits with {blocks} ({count} tried)").format(blocks=found, count=judged.searched)


def said_blocks(blocks: Blocks) -> str:
    """Format block sizes as comma-separated pairs, NAME=SIZE."""
    return ", ".join(f"{name}={side}" for name, side in blocks.items())


def content(result: Report) -> dict[str, object]:
    """Return a report as a JSON-serializable object."""
    request = result.request
    return {
        "schema": 1,
        "soc": request.soc.value,
        "compiler": {
            "front": request.toolchain.pair.front,
            "back": request.toolchain.pair.back,
            "cann": request.toolchain.pair.cann,
            "folder": str(request.toolchain.folder),
        },
        "simulated": True,
        "not_shown": list(NOT_SHOWN),
        "counts": {verdict.value: number for verdict, number in counts(result.judged).items()},
        "seconds": round(result.seconds, 1),
        "kernels": [_judged(each, result.root) for each in result.judged],
        "unread": {shown(file, result.root): why for file, why in result.unread.items()},
    }


def _judged(each: Judged, root: Path) -> dict[str, object]:
    kernel = each.kernel
    return {
        "kernel": kernel.id,
        "file": shown(kernel.file, root),
        "line": kernel.line,
        **_outcome(each.best, root),
        "configurations": len(kernel.cases),
        "fits": [dict(blocks) for blocks in each.fits],
        "searched": each.searched,
        "tried": [{**_arguments(arguments), **_outcome(outcome, root)} for arguments, outcome in each.tried],
    }


def _outcome(outcome: Outcome, root: Path) -> dict[str, object]:
    return {
        "verdict": outcome.verdict.value,
        "stage": outcome.stage.value if outcome.stage else None,
        "why": outcome.why,
        "buffer": outcome.buffer,
        "needed_bits": outcome.needed,
        "available_bits": outcome.there,
        "refused_file": shown(outcome.file, root) if outcome.file else "",
        "refused_line": outcome.line,
        "refused_text": outcome.text,
        "compiler_did": list(outcome.notes),
        "seconds": round(outcome.seconds, 2),
        "cached": outcome.cached,
    }


def _arguments(arguments: Arguments) -> dict[str, object]:
    return {
        "arguments": arguments.origin.value,
        "configuration": arguments.label,
        "signature": dict(arguments.signature),
        "constants": dict(arguments.constants),
        "divisible_by_16": list(arguments.divisible),
        "equal_to_1": list(arguments.ones),
        "unsure": list(arguments.unsure),
        "options": dict(arguments.options),
        "grid": list(arguments.grid),
    }
