"""`python -m verl_npu.maintain drift`, which compares each patch with a newer upstream version."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .. import progress
from ..cli import terminal, upstreams
from ..cli.options import complete_source, example
from ..features import UPSTREAMS, load
from ..language import gettext as _
from ..registry.source.tree import SourceTree
from .survey import Outcome, Surveyed, survey

_MEANING = {
    Outcome.LANDED: _("upstream has the fix itself; retire the patch for this revision"),
    Outcome.DRIFTED: _("the target changed; adapt the patch"),
    Outcome.GONE: _("the target no longer exists; find out where it went"),
    Outcome.FITS: _("the patch still fits; lock the new revision"),
    Outcome.IDLE: _("there is nothing to patch at this revision"),
}
_TO_DO = (Outcome.DRIFTED, Outcome.GONE)


@click.command(epilog=example("python -m verl_npu.maintain drift --source ../verl"))
@click.option("--upstream", type=click.Choice([u.name for u in UPSTREAMS]), default="verl", show_default=True)
@click.option(
    "--source",
    metavar="PATH",
    required=True,
    shell_complete=complete_source,
    help="A checkout or a wheel of the newer upstream version.",
)
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
def drift(upstream: str, source: str, form: str) -> None:
    """Compare the target of each patch with a newer upstream version, and print what to do about the patch.

    This command is for maintainers of the patches; users run `verl-npu check`.

    Exit status: 0 if there is nothing to do; 1 if a patch drifted or its target no longer exists; 2 if the source
    cannot be read.
    """
    chosen = next(u for u in UPSTREAMS if u.name == upstream)
    tree = upstreams.tree(upstreams.INSTALLED).with_packages(SourceTree.at(Path(source), chosen.packages))
    features = load()
    number = sum(tree.covers(patch.target.package) for feature in features for patch in feature)
    findings = []
    with progress.step(_("comparing with {source}").format(source=source), total=number, unit="patches") as comparing:
        for finding in survey(features, UPSTREAMS, tree, upstreams.locks()):
            comparing.done += 1
            if finding.patch.target.package in chosen.packages:
                findings.append(finding)
    terminal.block({"text": _text, "json": _json, "markdown": _markdown}[form](findings, source))
    sys.exit(int(any(finding.outcome in _TO_DO for finding in findings)))


def _groups(findings: Sequence[Surveyed]) -> list[tuple[Outcome, list[Surveyed]]]:
    groups = [(outcome, [f for f in findings if f.outcome is outcome]) for outcome in Outcome]
    return [(outcome, group) for outcome, group in groups if group]


def _text(findings: Sequence[Surveyed], source: str) -> str:
    lines = [
        _("{source} against {value}").format(source=source, value=_(", ").join(sorted({f.against for f in findings})))
    ]
    for outcome, group in _groups(findings):
        lines += ["", _("{outcome}: {meaning}").format(outcome=outcome, meaning=_MEANING[outcome])]
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


def _markdown(findings: Sequence[Surveyed], _: str) -> str:
    lines = [f"## Drift against {', '.join(sorted({f.against for f in findings}))}", ""]
    lines += ["| patch | outcome | target | reason |", "|---|---|---|---|"]
    lines += [
        f"| `{f.patch.id}` | **{f.outcome}** | `{f.patch.target}` | {f.reason.replace('|', chr(92) + '|')} |"
        for _unused, group in _groups(findings)
        for f in group
    ]
    for finding in findings:
        if finding.diff and finding.outcome in _TO_DO:
            lines += ["", f"### {finding.patch.id}", "", "```diff", finding.diff.rstrip(), "```"]
    return "\n".join(lines)
