"""`python -m verl_npu.maintain drift`: what a newer upstream means for each patch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..features import UPSTREAMS, load, locks_folder
from ..registry.judge.lock import read_locks
from ..registry.source.tree import SourceTree
from ..reporting import clean
from .survey import Outcome, Surveyed, survey

_MEANING = {
    Outcome.LANDED: "upstream does it itself now; retire the patch for this revision",
    Outcome.DRIFTED: "the target changed; adapt the patch",
    Outcome.GONE: "the target is not there any more; find out where it went",
    Outcome.FITS: "still fits; lock the new revision",
    Outcome.IDLE: "nothing to patch at this revision",
}
_TO_DO = (Outcome.DRIFTED, Outcome.GONE)


@click.command()
@click.option("--upstream", type=click.Choice([u.name for u in UPSTREAMS]), default="verl", show_default=True)
@click.option("--source", metavar="PATH", required=True, help="A checkout or a wheel of the newer upstream.")
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
def drift(upstream: str, source: str, form: str) -> None:
    """Say what a newer upstream means for each patch.

    This is for those who maintain the patches; `verl-npu check` is for those who use them.

    Exit status: 0 nothing to work on, 1 a patch drifted or its target is gone, 2 the source cannot be read.
    """
    chosen = next(u for u in UPSTREAMS if u.name == upstream)
    packages = [package for each in UPSTREAMS for package in each.packages]
    tree = SourceTree.installed(packages).with_packages(SourceTree.at(Path(source), chosen.packages))
    locks = {each.name: read_locks(locks_folder(), each.name) for each in UPSTREAMS}
    surveyed = survey(load(), UPSTREAMS, tree, locks)
    findings = [finding for finding in surveyed if finding.patch.target.package in chosen.packages]
    text = {"text": _text, "json": _json, "markdown": _markdown}[form](findings, source)
    click.echo("\n".join(map(clean, text.splitlines())))
    sys.exit(int(any(finding.outcome in _TO_DO for finding in findings)))


def _groups(findings: Sequence[Surveyed]) -> list[tuple[Outcome, list[Surveyed]]]:
    groups = [(outcome, [f for f in findings if f.outcome is outcome]) for outcome in Outcome]
    return [(outcome, group) for outcome, group in groups if group]


def _text(findings: Sequence[Surveyed], source: str) -> str:
    lines = [f"{source} against {', '.join(sorted({f.against for f in findings}))}"]
    for outcome, group in _groups(findings):
        lines += ["", f"{outcome}: {_MEANING[outcome]}"]
        for finding in group:
            lines += [f"  {finding.patch.id}  {finding.patch.target}", f"    {finding.reason}"]
            if outcome in _TO_DO:
                lines += [f"    {line}" for line in finding.diff.splitlines()]
    return "\n".join(lines)


def _json(findings: Sequence[Surveyed], source: str) -> str:
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
                }
                for finding in findings
            ],
        },
        indent=2,
    )


def _markdown(findings: Sequence[Surveyed], source: str) -> str:
    lines = [f"## Drift against {', '.join(sorted({f.against for f in findings}))}", ""]
    lines += ["| patch | outcome | target | reason |", "|---|---|---|---|"]
    lines += [
        f"| `{f.patch.id}` | **{f.outcome}** | `{f.patch.target}` | {f.reason.replace('|', chr(92) + '|')} |"
        for _outcome, group in _groups(findings)
        for f in group
    ]
    for finding in findings:
        if finding.diff and finding.outcome in _TO_DO:
            lines += ["", f"### {finding.patch.id}", "", "```diff", finding.diff.rstrip(), "```"]
    return "\n".join(lines)
