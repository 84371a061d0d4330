"""`verl-npu check --script`: what is known to be wrong with a launch script, in seconds and without running it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import VerlNpuError
from ..rehearse.capture import Capture, capture, tree_of
from ..rehearse.composition import compose
from ..rehearse.guards import Finding, Script, findings
from ..rehearse.settings import Settings
from ..rehearse.trainer import Trainer, of_capture, runtime_environment
from . import terminal, upstreams

__all__ = ["check_script"]


def check_script(script: Path, source: str, arguments: Sequence[str], as_json: bool) -> None:
    """Judge a script against the verl of its own tree, of `source`, or that is installed, and exit.

    Exit status: 0 nothing is refused, 1 something is, 2 it cannot be judged.
    """
    tree = Path(source).resolve() if source != upstreams.INSTALLED else tree_of(script).resolve()
    captured = capture(script, tree, arguments, os.environ)
    trainer = of_capture(captured)
    settings, refusal = _composed(trainer, tree)
    found = [refusal] if refusal else findings(_script(captured, trainer, settings, tree, source))
    if as_json:
        click.echo(json.dumps(_content(captured, trainer, found), indent=2))
    else:
        _print(captured, trainer, found)
    sys.exit(int(any(finding.refused for finding in found)))


def _composed(trainer: Trainer, tree: Path) -> tuple[Settings, Finding | None]:
    """Hydra is the judge of keys: what it does not take ends the job at its start."""
    try:
        return Settings(compose(trainer, tree).values), None
    except VerlNpuError as error:
        if not error.subject.startswith("the overrides"):
            raise
        why = "the trainer ends with the same error before anything starts"
        return Settings({}), Finding("Hydra", True, error.subject, error.found, why, error.fix)


def _script(captured: Capture, trainer: Trainer, settings: Settings, tree: Path, source: str) -> Script:
    runtime = runtime_environment(captured)
    return Script(
        trainer=trainer,
        settings=settings,
        pin=upstreams.nearest_pin(tree, source),
        text=captured.script.read_text(errors="replace"),
        submitted=runtime is not None,
        runtime=runtime or {},
    )


def _content(captured: Capture, trainer: Trainer, found: Sequence[Finding]) -> dict[str, object]:
    return {
        "script": str(captured.script),
        "tree": str(captured.tree),
        "trainer": trainer.module,
        "overrides": list(trainer.overrides),
        "exports": dict(trainer.exports),
        "missing": list(captured.missing),
        "findings": [
            {
                "rule": finding.rule,
                "refused": finding.refused,
                "subject": finding.subject,
                "found": finding.found,
                "why": finding.why,
                "fix": finding.fix,
            }
            for finding in found
        ],
    }


def _print(captured: Capture, trainer: Trainer, found: Sequence[Finding]) -> None:
    terminal.line(f"{trainer.module} in {captured.tree}, with {len(trainer.overrides)} settings")
    for path in captured.missing:
        terminal.paragraph(f"the script reads {path}, which is not on this machine", label="note: ", indent="  ")
    for finding in found:
        style, label = ("red", "refused") if finding.refused else ("yellow", "warning")
        terminal.line(terminal.styled(label, style), f"  {finding.rule}: {finding.subject}")
        terminal.paragraph(f"Found {finding.found}. {finding.why[:1].upper()}{finding.why[1:]}.", indent="    ")
        terminal.paragraph(f"Fix: {finding.fix}.", indent="    ")
    refused = sum(finding.refused for finding in found)
    if not found:
        terminal.line(terminal.styled("in order", "green"), ": nothing is known to be wrong with it")
    else:
        terminal.line(f"{refused} refused, {len(found) - refused} warnings")
    terminal.echo("`verl-npu rehearse` runs it on virtual NPUs.")
