"""`verl-npu mindspeed`: what MindSpeed's overrides can do here, and whether some would do what they say. No torch."""

from __future__ import annotations

import json
import sys
from itertools import combinations

import click
from rich.console import Console
from rich.text import Text

from ..errors import DeclarationError
from ..features.megatron.catalogue import CATALOGUE, missing
from ..features.megatron.command_line import requests
from ..features.megatron.contract import Contract
from ..features.megatron.installation import Installation, contracts, installation
from ..features.megatron.overrides import Request, effective, problems

__all__ = ["mindspeed"]

# The revision that upstream's documents name for most of the pins.
_DEFAULT = "2.3.0_core_r0.12.1"


@click.command()
@click.option("--list", "as_list", is_flag=True, help="The features that can be switched on, and their overrides.")
@click.option("--check", "text", metavar="OVERRIDES", help="Judge 'key=value …', or a whole Hydra command line.")
@click.option("--revision", help="Judge by a recorded MindSpeed instead of the installed one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def mindspeed(as_list: bool, text: str | None, revision: str | None, as_json: bool) -> None:
    """Say what MindSpeed understands. Status 1 where an override is refused, 2 for a wrong call."""
    if as_list == (text is not None):
        raise click.UsageError("give either --list or --check OVERRIDES")
    contract, source = _contract(revision)
    if text is None:
        _list(contract, source, as_json)
    else:
        sys.exit(_check(requests(text), contract, source, as_json))


def _contract(revision: str | None) -> tuple[Contract, str]:
    recorded = {contract.revision: contract for contract in contracts()}
    if revision is not None and revision not in recorded:
        raise DeclarationError(
            subject="--revision", expected=f"one of {', '.join(recorded)}", found=revision, fix="take one of these"
        )
    found = installation() if revision is None else None
    if found is not None and found.mindspeed is not None:
        return found.contract, _installed(found)
    chosen = recorded[revision or _DEFAULT]
    where = "as recorded" if revision else "as recorded: none is installed here; choose with --revision"
    return chosen, f"MindSpeed {chosen.revision} ({where}), Megatron {chosen.megatron}"


def _installed(found: Installation) -> str:
    if found.exact:
        return f"MindSpeed {found.contract.revision}, installed, Megatron {found.contract.megatron}"
    return f"MindSpeed {found.contract.revision}: {len(found.differences)} arguments or features differ"


def _list(contract: Contract, source: str, as_json: bool) -> None:
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
    if as_json:
        click.echo(json.dumps({"source": source, "features": rows}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(source, markup=False)
    for row in rows:
        here = Text("yes", "green") if row["here"] else Text("no ", "red")
        notes = [str(row["constraint"]), f"in MindSpeed's documents since {row['documented']}"]
        if row["documented"] == "-":
            notes[1] = "not in MindSpeed's documents for verl"
        console.print(
            Text.assemble(here, "  ", (str(row["name"]), "bold"), "  ", ("; ".join(filter(None, notes)), "dim"))
        )
        for override in row["overrides"]:  # type: ignore[attr-defined]
            console.print(f"       {override}", markup=False)


def _check(asked: list[Request], contract: Contract, source: str, as_json: bool) -> int:
    judged = [(request, list(problems(request, contract))) for request in asked]
    notes = [note for pair in combinations(asked, 2) for note in _apart(*pair, contract)]
    if as_json:
        content = {
            "source": source,
            "workers": [
                {
                    "worker": request.worker,
                    "effective": effective(request),
                    "problems": [
                        {"override": p.subject, "expected": p.expected, "found": p.found, "fix": p.fix} for p in found
                    ],
                }
                for request, found in judged
            ],
            "notes": notes,
        }
        click.echo(json.dumps(content, indent=2))
        return int(any(found for _, found in judged))
    click.echo(source)
    for request, found in judged:
        for problem in found:
            click.echo(
                f"{request.worker}: {problem.subject}: expected {problem.expected}, found {problem.found}; "
                f"{problem.fix}"
            )
        if not found:
            settings = ", ".join(f"{key}={value}" for key, value in effective(request).items())
            click.echo(f"{request.worker}: in order; MindSpeed gets {settings}")
    for note in notes:
        click.echo(f"note: {note}")
    return int(any(found for _, found in judged))


def _apart(one: Request, other: Request, contract: Contract) -> list[str]:
    """What keeps two workers out of one process."""
    mine, theirs = effective(one), effective(other)
    keys = sorted(k for k in {*mine, *theirs} & contract.switches if mine.get(k) != theirs.get(k))
    if not keys:
        return []
    return [f"{one.worker} and {other.worker} differ in {', '.join(keys)}: they cannot share a process"]
