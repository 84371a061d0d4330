"""The launch script that a command is given, and `verl-npu check --script`: what is known to be wrong with one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ...errors import ScriptError, VerlNpuError
from ...findings import Finding, Severity
from ..jobs.capture import Capture, capture, tree_of
from ..jobs.job import compose
from ..jobs.rules import Script, findings
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer, runtime_environment, trainer_of, trainer_of_command
from . import terminal, upstreams


def check_script(script: Path, source: str, arguments: Sequence[str], as_json: bool) -> None:
    """Judge a script against the verl of its own tree, of `source`, or that is installed, and exit.

    Exit status: 0 nothing is refused, 1 something is, 2 it cannot be judged.
    """
    tree = Path(source).resolve() if source != upstreams.INSTALLED else tree_of(script).resolve()
    captured = capture(script, tree, arguments, os.environ)
    trainer = trainer_of(captured)
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
        return compose(trainer, tree).settings, None
    except VerlNpuError as error:
        if not error.subject.startswith("the overrides"):
            raise
        why = "the trainer ends with the same error before anything starts"
        return Settings({}), Finding(
            code="Hydra",
            severity=Severity.ERROR,
            subject=error.subject,
            expected=error.expected,
            found=error.found,
            why=why,
            fix=error.fix,
        )


def _script(captured: Capture, trainer: Trainer, settings: Settings, tree: Path, source: str) -> Script:
    runtime = runtime_environment(captured)
    return Script(
        trainer=trainer,
        settings=settings,
        pin=upstreams.nearest_pin(tree, source),
        sources=upstreams.of_job(tree, source),
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
                "rule": finding.code,
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
        terminal.line(terminal.styled(label, style), f"  {finding.code}: {finding.subject}")
        terminal.paragraph(f"Found {finding.found}. {finding.why[:1].upper()}{finding.why[1:]}.", indent="    ")
        terminal.paragraph(f"Fix: {finding.fix}.", indent="    ")
    refused = sum(finding.refused for finding in found)
    if not found:
        terminal.line(terminal.styled("in order", "green"), ": nothing is known to be wrong with it")
    else:
        terminal.line(f"{refused} refused, {len(found) - refused} warnings")
    terminal.echo("`verl-npu rehearse` runs it on virtual NPUs.")


def asked_trainer(
    command: str, script: Path | None, arguments: Sequence[str], verl: Path | None
) -> tuple[Trainer, Path, str]:
    """Return the trainer, the source tree to start it in, and a name for it.

    `command` is what the user called, for the error if there is neither a script nor a command.

    Raises:
        ScriptError: there is no trainer, or more than one.
    """
    words = list(arguments)
    # click takes the first word after -- for the script, if there is none.
    if script is not None and words and not script.exists() and _is_program(str(script)):
        script, words = None, [str(script), *words]
    if script is None:
        if not words:
            raise ScriptError(
                subject=f"verl-npu {command}",
                expected="a launch script, or a trainer's command after --",
                found="neither",
                fix=f"see verl-npu {command} --help",
            )
        tree = (verl or Path.cwd()).resolve()
        return trainer_of_command(words, tree, {}), tree, "command"
    tree = (verl or tree_of(script)).resolve() if script.is_file() else Path.cwd()
    return trainer_of(capture(script, tree, words, os.environ)), tree, script.stem


def _is_program(word: str) -> bool:
    return Path(word).name.startswith(("python", "torchrun", "ray")) or "=" in word
