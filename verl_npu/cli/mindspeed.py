"""`verl-npu mindspeed`: what MindSpeed's overrides can do here, and whether some would do what they say. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import click

from ..errors import DeclarationError
from ..features.megatron.overrides.catalogue import CATALOGUE, missing
from ..features.megatron.overrides.command_line import requests
from ..features.megatron.overrides.contract import Contract
from ..features.megatron.overrides.installation import Installation, contracts, installation
from ..features.megatron.overrides.judgement import problems
from ..features.megatron.overrides.request import Request, effective, not_judged
from ..features.megatron.overrides.rules import Problem
from ..features.megatron.overrides.unexpanded import Unexpanded
from . import terminal
from .help import example

__all__ = ["mindspeed"]

# The revision that upstream's documents name for most of the pins.
_DEFAULT = "2.3.0_core_r0.12.1"


@click.command(
    epilog=example(
        "verl-npu mindspeed --list",
        "verl-npu mindspeed --check 'use_flash_attn=True swap_optimizer=True'",
        'verl-npu mindspeed --check "$(cat run.sh)"',
    )
)
@click.option("--list", "as_list", is_flag=True, help="The features that can be switched on, and their overrides.")
@click.option("--check", "text", metavar="OVERRIDES", help="Judge 'key=value …', a Hydra command line, or a script.")
@click.option("--revision", help="Judge by a recorded MindSpeed instead of the installed one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def mindspeed(as_list: bool, text: str | None, revision: str | None, as_json: bool) -> None:
    """Say what MindSpeed understands.

    Exit status: 0 if nothing is refused, 1 if an override is, 2 for a wrong call.
    """
    if as_list == (text is not None):
        raise click.UsageError("give either --list or --check OVERRIDES")
    contract, source = _contract(revision)
    if text is None:
        _list(contract, source, as_json)
        return
    verdicts = [_judge(request, contract) for request in requests(text)]
    notes = [note for pair in combinations(verdicts, 2) for note in _apart(*pair, contract)]
    if as_json:
        click.echo(json.dumps(_content(source, verdicts, notes), indent=2, default=str))
    else:
        _print(source, verdicts, notes)
    sys.exit(int(any(verdict.problems for verdict in verdicts)))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was judged of one worker's overrides."""

    worker: str
    effective: dict[str, object]
    problems: tuple[Problem, ...]
    not_judged: dict[str, Unexpanded]


def _contract(revision: str | None) -> tuple[Contract, str]:
    recorded = {contract.revision: contract for contract in contracts()}
    if revision is not None and revision not in recorded:
        raise DeclarationError(
            subject="--revision",
            expected=f"one of {', '.join(recorded)}",
            found=repr(revision),
            fix="take one of these",
        )
    here = installation() if revision is None else None
    if here is not None and here.mindspeed is not None:
        return here.contract, _installed(here)
    chosen = recorded[revision or _DEFAULT]
    where = "as recorded" if revision else "as recorded: none is installed here; choose with --revision"
    return chosen, f"MindSpeed {chosen.revision} ({where}), Megatron {chosen.megatron}"


def _installed(here: Installation) -> str:
    if here.exact:
        return f"MindSpeed {here.contract.revision}, installed, Megatron {here.contract.megatron}"
    return f"MindSpeed {here.contract.revision}: {len(here.differences)} arguments or features differ"


def _list(contract: Contract, source: str, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": entry.name,
                "overrides": list(entry.overrides),
                "documented": entry.documented,
                "constraint": entry.constraint,
                "here": not missing(entry, contract),
                "missing": list(missing(entry, contract)),
            }
            for entry in CATALOGUE
        ]
        click.echo(json.dumps({"source": source, "features": rows}, indent=2))
        return
    terminal.echo(source)
    for entry in CATALOGUE:
        here = terminal.styled("no ", "red") if missing(entry, contract) else terminal.styled("yes", "green")
        documented = f"in MindSpeed's documents since {entry.documented}"
        if entry.documented == "-":
            documented = "not in MindSpeed's documents for verl"
        notes = "; ".join(filter(None, (entry.constraint, documented)))
        terminal.line(here, "  ", terminal.styled(entry.name, "bold"), "  ", terminal.styled(notes, "dim"))
        for override in entry.overrides:
            terminal.echo(f"       {override}")


def _judge(request: Request, contract: Contract) -> _Verdict:
    return _Verdict(request.worker, effective(request), tuple(problems(request, contract)), not_judged(request))


def _content(source: str, verdicts: Sequence[_Verdict], notes: Sequence[str]) -> dict[str, object]:
    return {
        "source": source,
        "workers": [
            {
                "worker": verdict.worker,
                "effective": verdict.effective,
                "problems": [
                    {"override": p.subject, "expected": p.expected, "found": p.found, "fix": p.fix}
                    for p in verdict.problems
                ],
                "not_judged": {key: value.text for key, value in verdict.not_judged.items()},
            }
            for verdict in verdicts
        ],
        "notes": list(notes),
    }


def _print(source: str, verdicts: Sequence[_Verdict], notes: Sequence[str]) -> None:
    lines = [source]
    for verdict in verdicts:
        lines += [f"{verdict.worker}: {problem}" for problem in verdict.problems]
        if not verdict.problems:
            settings = ", ".join(f"{key}={value}" for key, value in verdict.effective.items())
            order = "in order, as far as it can be judged" if verdict.not_judged else "in order"
            lines.append(f"{verdict.worker}: {order}; MindSpeed gets {settings}")
        lines += [
            f"{verdict.worker}: not judged: {key}={value} {value.kind}" for key, value in verdict.not_judged.items()
        ]
    lines += [f"note: {note}" for note in notes]
    if any(verdict.not_judged for verdict in verdicts):
        lines.append("note: to have the rest judged as well, write each value in the place of its variable")
    for line in lines:
        terminal.echo(line)


def _apart(one: _Verdict, other: _Verdict, contract: Contract) -> list[str]:
    """Return what keeps two workers from sharing a process; a value that is yet to be computed does not."""
    mine, theirs = one.effective, other.effective
    unknown = {key for key, value in [*mine.items(), *theirs.items()] if isinstance(value, Unexpanded)}
    keys = sorted(k for k in ({*mine, *theirs} & contract.switches) - unknown if mine.get(k) != theirs.get(k))
    if not keys:
        return []
    return [f"{one.worker} and {other.worker} differ in {', '.join(keys)}: they cannot share a process"]
