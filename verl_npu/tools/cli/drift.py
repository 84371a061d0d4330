"""`verl-npu drift`: what a newer upstream means for each patch."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ...features import UPSTREAMS, load
from ...registry.judge.drift import Outcome, Proposal, Surveyed, propose, survey
from ...registry.patch import Upstream
from ...registry.source.tree import SourceTree
from . import terminal, upstreams
from .completion import complete_source
from .help import example
from .proving import proving_job

__all__ = ["drift"]

_MEANING = {
    Outcome.LANDED: "upstream does it itself now; retire the patch for this revision",
    Outcome.DRIFTED: "the target changed; adapt the patch",
    Outcome.GONE: "the target is not there any more; find out where it went",
    Outcome.FITS: "still fits; lock the new revision",
    Outcome.IDLE: "nothing to patch at this revision",
}
_TO_DO = (Outcome.DRIFTED, Outcome.GONE)


Proposals = Mapping[str, Proposal]
"""Where targets may have gone, by the patch."""

_UNPROVEN = "Nothing was run: a candidate is unproven until the job that is named with it has trained."


@click.command(epilog=example("verl-npu drift --source ../verl", "verl-npu drift --source ../verl --propose"))
@click.option("--upstream", type=click.Choice([u.name for u in UPSTREAMS]), default="verl", show_default=True)
@click.option(
    "--source",
    metavar="PATH",
    required=True,
    shell_complete=complete_source,
    help="A checkout or a wheel of the newer upstream.",
)
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option("--propose", "proposing", is_flag=True, help="Propose where each target that is gone may have moved.")
def drift(upstream: str, source: str, form: str, proposing: bool) -> None:
    """Say what a newer upstream means for each patch.

    This is for those who maintain the patches; `verl-npu check` is for those who use them.

    With --propose, each target that was moved or renamed gets a candidate: the new target, the entry that a lock would
    have for it, and the job that would prove it. Nothing is written, and no candidate is proven.

    Exit status: 0 nothing to work on, 1 a patch drifted or its target is gone, 2 the source cannot be read.
    """
    chosen = next(u for u in UPSTREAMS if u.name == upstream)
    tree = upstreams.tree(upstreams.INSTALLED).with_packages(SourceTree.at(Path(source), chosen.packages))
    findings = [
        finding
        for finding in survey(load(), UPSTREAMS, tree, upstreams.locks())
        if finding.patch.target.package in chosen.packages
    ]
    found = _proposals(findings, chosen, tree) if proposing else {}
    terminal.block({"text": _text, "json": _json, "markdown": _markdown}[form](findings, found, source))
    sys.exit(int(any(finding.outcome in _TO_DO for finding in findings)))


def _proposals(findings: Sequence[Surveyed], upstream: Upstream, tree: SourceTree) -> Proposals:
    """Return the candidates for the patches whose target is gone; the nearest pin is compared first."""
    gone = {finding.patch.id: finding for finding in findings if finding.outcome is Outcome.GONE}
    nearest = {finding.against for finding in gone.values()}
    # The last lock that has a target is the one that it is compared with.
    known = sorted(upstreams.locks()[upstream.name], key=lambda lock: lock.pin in nearest)
    found = propose([finding.patch for finding in findings], upstream, tree, known)
    return {id: proposal for id, proposal in found.items() if id in gone}


def _command(proposal: Proposal, source: str) -> str:
    """Return the command that would prove a proposal; empty if no job runs the patch."""
    job = (
        proving_job(proposal.patch, proposal.target) if proposal.patch.target.package in UPSTREAMS[0].packages else ""
    )
    # A wheel is no checkout: its release is a pin, or will be one.
    where = f" --verl {shlex.quote(source)}" if Path(source).is_dir() else ""
    return f"scripts/smoke.sh --job {job}{where}" if job else ""


def _candidate(proposal: Proposal, source: str) -> dict[str, object]:
    return {
        "target": str(proposal.target),
        "why": proposal.why,
        "proven": False,
        "taken_by": proposal.taken,
        "lock": {str(proposal.target): proposal.record.as_json()},
        "proof": _command(proposal, source),
    }


def _described(proposal: Proposal, source: str) -> list[str]:
    command = _command(proposal, source)
    entry = proposal.record.as_json()
    entry.pop("outline", None)
    return [
        f"candidate, unproven: {proposal.target}, because {proposal.why}",
        *([f"  {proposal.taken} has that target already"] if proposal.taken else []),
        f"  lock: {json.dumps({str(proposal.target): entry})}",
        f"  to prove it: {command}" if command else "  to prove it: no job of scripts/smoke.sh runs it; write one",
    ]


def _groups(findings: Sequence[Surveyed]) -> list[tuple[Outcome, list[Surveyed]]]:
    groups = [(outcome, [f for f in findings if f.outcome is outcome]) for outcome in Outcome]
    return [(outcome, group) for outcome, group in groups if group]


def _text(findings: Sequence[Surveyed], found: Proposals, source: str) -> str:
    lines = [f"{source} against {', '.join(sorted({f.against for f in findings}))}"]
    for outcome, group in _groups(findings):
        lines += ["", f"{outcome}: {_MEANING[outcome]}"]
        for finding in group:
            lines += [f"  {finding.patch.id}  {finding.patch.target}", f"    {finding.reason}"]
            if finding.patch.id in found:
                lines += [f"    {line}" for line in _described(found[finding.patch.id], source)]
            if outcome in _TO_DO:
                lines += [f"    {line}" for line in finding.diff.splitlines()]
    lines += ["", _UNPROVEN] if found else []
    return "\n".join(lines)


def _json(findings: Sequence[Surveyed], found: Proposals, source: str) -> str:
    return json.dumps(
        {
            "source": source,
            "patches": [
                {
                    "id": finding.patch.id,
                    "target": str(finding.patch.target),
                    "outcome": str(finding.outcome),
                    "reason": finding.reason,
                    "against": finding.against,
                    "diff": finding.diff,
                    "candidate": _candidate(found[finding.patch.id], source) if finding.patch.id in found else None,
                }
                for finding in findings
            ],
        },
        indent=2,
    )


def _markdown(findings: Sequence[Surveyed], found: Proposals, source: str) -> str:
    lines = [f"## Drift against {', '.join(sorted({f.against for f in findings}))}", ""]
    lines += ["| patch | outcome | target | reason |", "|---|---|---|---|"]
    lines += [
        f"| `{f.patch.id}` | **{f.outcome}** | `{f.patch.target}` | {f.reason.replace('|', chr(92) + '|')} |"
        for _, group in _groups(findings)
        for f in group
    ]
    if found:
        lines += ["", _UNPROVEN, "", "| patch | candidate, unproven | because | to prove it |", "|---|---|---|---|"]
    for id, one in found.items():
        command = _command(one, source)
        lines.append(f"| `{id}` | `{one.target}` | {one.why} | {f'`{command}`' if command else 'no job runs it'} |")
    for finding in findings:
        if finding.diff and finding.outcome in _TO_DO:
            lines += ["", f"### {finding.patch.id}", "", "```diff", finding.diff.rstrip(), "```"]
    return "\n".join(lines)
