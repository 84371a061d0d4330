"""`verl-npu lint`: what is known to be wrong with a launch script, or with overrides of MindSpeed's."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from verl_npu.cli import terminal, upstreams
from verl_npu.cli.options import example, json_option, source_option
from verl_npu.errors import PlanError, ScriptError, VerlNpuError
from verl_npu.findings import Finding, Severity, Status
from verl_npu.language import capitalised, ngettext
from verl_npu.language import gettext as _
from verl_npu.pins import pins

from ..jobs.capture import Capture, capture, check_text, tree_of
from ..jobs.job import Job, compose, follows_all
from ..jobs.rules import Script, findings, unexported
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer, runtime_environment, trainer_of
from ..plan.starting import started
from ..sandbox import why_none
from . import overrides
from .options import command, unconfined_option
from .script import say_unconfined


@command(
    epilog=example(
        "verl-npu lint run.sh",
        "verl-npu lint --start run.sh",
        "verl-npu lint --overrides 'use_flash_attn=True swap_optimizer=True'",
        "verl-npu lint --pin v0.8.0 --overrides run.sh",
        "verl-npu lint --list-overrides",
    )
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@source_option("A checkout of verl to judge the script by.")
@unconfined_option
@click.option(
    "--start", "starts", is_flag=True, help="Start the job's program, too, on phantom NPUs, up to its first step."
)
@click.option(
    "--model-config",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="With --start: a model's config.json, if the script's path names none that is known.",
)
@click.option(
    "--overrides",
    "text",
    metavar="WHAT",
    help="Judge MindSpeed's overrides alone: 'key=value …', a Hydra command line, or a script's file.",
)
@click.option("--list-overrides", is_flag=True, help="List MindSpeed's features and their overrides.")
@click.option("--revision", help="Judge overrides by a recorded MindSpeed instead of the installed one.")
@click.option(
    "--pin", type=click.Choice([*pins()]), help="Judge overrides by the MindSpeed that this verl's documents name."
)
@json_option()
def lint(
    script: Path | None,
    arguments: tuple[str, ...],
    source: str,
    unconfined: bool,
    starts: bool,
    model_config: Path | None,
    text: str | None,
    list_overrides: bool,
    revision: str | None,
    pin: str | None,
    as_json: bool,
) -> None:
    """Say what is known to be wrong with a launch script.

    The script is run in a sandbox, without your home and without a network, with stand-ins for all that it starts; its
    settings are composed there, too. Its arguments follow --. Where there can be no sandbox (it needs the package
    bubblewrap), its text alone is judged, and the status is 2.

    With --start the script's own program runs in the sandbox as well, on phantom NPUs of the number that the script
    asks for and in one process: its workers make their models, and its engine makes its configuration. It is stopped
    where the first gradients would be computed. An error that upstream raises on the way is told with its line.

    Overrides of MindSpeed's are judged by the MindSpeed that is installed. If there is none and none is chosen, all
    recorded ones are asked, and only what all of them refuse is refused.

    Exit status: 0 nothing is refused, 1 something is, 2 it, or a part of it, cannot be judged.
    """
    chosen = [script is not None, text is not None, list_overrides]
    if sum(chosen) != 1:
        raise click.UsageError(_("give one of SCRIPT, --overrides WHAT and --list-overrides"))
    if script is not None:
        if revision is not None or pin is not None:
            raise click.UsageError(_("--revision and --pin are about --overrides and --list-overrides"))
        check_script(script, source, arguments, as_json, unconfined, starts, model_config)
    elif text is not None:
        overrides.judge(text, revision, pin, as_json)
    else:
        overrides.show_all(revision, pin, as_json)


def check_script(
    script: Path,
    source: str,
    arguments: Sequence[str],
    as_json: bool,
    unconfined: bool,
    starts: bool = False,
    model_config: Path | None = None,
) -> None:
    """Judge a script against the verl of its own tree, of `source`, or that is installed, and exit.

    Where there can be no sandbox, and none is to be done without, its text alone is judged.

    Exit status: 0 nothing is refused, 1 something is, 2 it, or a part of it, cannot be judged.
    """
    say_unconfined(unconfined)
    if source != upstreams.INSTALLED and not Path(source).is_dir():
        raise ScriptError(
            subject=f"--source {source}",
            expected=_("the folder of a source tree: a script is started in it"),
            found=_("no folder"),
            fix=_("unpack the wheel, or leave --source out"),
        )
    tree = Path(source).resolve() if source != upstreams.INSTALLED else tree_of(script).resolve()
    reason = "" if unconfined else why_none()
    if reason:
        judged = _judged_text(script, reason)
    else:
        captured = capture(script, tree, arguments, os.environ, unconfined)
        trainer = trainer_of(captured)
        lacking = [package for module, package in _READERS.items() if importlib.util.find_spec(module) is None]
        job, refusal = (None, None) if lacking else _composed(trainer, tree, unconfined)
        asked = _script(captured, trainer, job.settings if job else Settings({}), tree)
        starting = _started(job, model_config, unconfined) if starts and job else _Start()
        unread = [each for each in (_unread(asked, lacking), starting.not_judged) if each]
        judged = _Judged(
            script=captured.script,
            tree=captured.tree,
            found=[*([refusal] if refusal else []), *findings(asked), *starting.found],
            started=starting.said,
            captured=captured,
            trainer=trainer,
            verl=_verl(tree, source, asked.pin),
            not_judged=_("; ").join(unread),
            remedy=_("Install {lacking}, which the extra `scripts` of verl-npu-workbench brings.").format(
                lacking=_(" and ").join(lacking)
            )
            if lacking
            else "",
        )
    if as_json:
        click.echo(json.dumps(_content(judged), indent=2))
    else:
        _print(judged)
    refused = any(finding.refused for finding in judged.found)
    sys.exit(Status.FOUND if refused else Status.NOT_JUDGED if judged.not_judged else Status.FINE)


@dataclass(frozen=True, slots=True)
class _Start:
    """What came of a start; nothing, if there was none."""

    found: Sequence[Finding] = ()
    said: str = ""
    """How far the job came."""
    not_judged: str = ""


def _started(job: Job, model_config: Path | None, unconfined: bool) -> _Start:
    try:
        return _Start(*started(job, model_config, unconfined))
    except PlanError as error:
        return _Start(not_judged=_("its start ({error})").format(error=error))


_READERS = {"hydra": "hydra-core", "yaml": "PyYAML"}
"""The packages that read what a script names, by the module of each."""


def _unread(script: Script, lacking: Sequence[str]) -> str:
    """What is left out without some of those packages, and why; empty if nothing is."""
    parts = [_("its settings, and what depends on them")] if lacking else []
    if script.submitted and script.runtime is None:
        parts.append(_("the variables of the runtime environment that it is submitted with"))
    return (
        _("{parts}, because {prefix} has no {lacking}").format(
            parts=_(", and ").join(parts), prefix=sys.prefix, lacking=_(" and no ").join(lacking)
        )
        if parts
        else ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verl:
    """The verl that a script was judged by."""

    path: str
    reason: str
    """Why that one."""
    pin: str
    """The revision with a lock that is nearest to it."""


def _verl(tree: Path, source: str, pin: str) -> _Verl | None:
    """The verl of a job that is started in `tree`; None if there is none."""
    if upstreams.has_verl(tree):
        named = source != upstreams.INSTALLED
        reason = (
            _("of the source tree that --source names") if named else _("of the source tree that the script lies in")
        )
        return _Verl(path=str(tree / "verl"), reason=reason, pin=pin)
    spec = importlib.util.find_spec("verl")
    places = [*(spec.submodule_search_locations or ())] if spec is not None else []
    return (
        _Verl(path=places[0], reason=_("the installed one, as {tree} has none").format(tree=tree), pin=pin)
        if places
        else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What was found, and of what."""

    script: Path
    tree: Path
    found: Sequence[Finding]
    captured: Capture | None = None
    trainer: Trainer | None = None
    not_judged: str = ""
    """What was left out, and why; empty if nothing was."""
    remedy: str = ""
    """How to have that judged, too."""
    verl: _Verl | None = None
    started: str = ""
    """How far a start came; empty if there was none."""


def _judged_text(script: Path, reason: str) -> _Judged:
    """What can be told of a script that is not run: that bash can parse it, and what it sets and does not export."""
    check_text(script)
    found = list(unexported(script.read_text(errors="replace"), ()))
    left_out = _("its trainer and its settings, because there can be no sandbox here to run it in ({reason})").format(
        reason=reason
    )
    return _Judged(
        script=script.resolve(),
        tree=tree_of(script).resolve(),
        found=found,
        not_judged=left_out,
        remedy=_(
            "Install the package bubblewrap, or add --unconfined, which runs it with your home and your network."
        ),
    )


def _composed(trainer: Trainer, tree: Path, unconfined: bool) -> tuple[Job | None, Finding | None]:
    """Hydra is the judge of keys: what it does not take ends the job at its start."""
    try:
        job = compose(trainer, tree, unconfined)
    except VerlNpuError as error:
        if not error.subject.startswith("the overrides"):
            raise
        return None, Finding(
            code="hydra",
            severity=Severity.ERROR,
            subject=error.subject,
            expected=error.expected,
            found=error.found,
            why=_("the trainer ends with the same error before anything starts"),
            fix=error.fix,
        )
    if not job.dangling or not follows_all(job):
        return job, None
    return job, Finding(
        code="hydra",
        severity=Severity.ERROR,
        subject=", ".join(job.dangling),
        expected=_("a reference to a setting that is there"),
        found=_(", ").join(job.dangling.values()),
        why=_("OmegaConf raises InterpolationKeyError as the trainer follows all references: no step is made"),
        fix=_("keep the setting that it refers to, or give the one that refers to it a value of its own"),
    )


def _script(captured: Capture, trainer: Trainer, settings: Settings, tree: Path) -> Script:
    runtime = runtime_environment(captured)
    unread = importlib.util.find_spec("yaml") is None and any(call.runtime for call in captured.calls)
    return Script(
        trainer=trainer,
        settings=settings,
        pin=upstreams.nearest_pin(tree),
        sources=upstreams.of_job(tree),
        text=captured.script.read_text(errors="replace"),
        submitted=runtime is not None,
        runtime=None if unread else runtime or {},
    )


def _content(judged: _Judged) -> dict[str, object]:
    captured, trainer, verl = judged.captured, judged.trainer, judged.verl
    return {
        "script": str(judged.script),
        "tree": str(judged.tree),
        "trainer": trainer.module if trainer else "",
        "overrides": list(trainer.overrides) if trainer else [],
        "exports": dict(trainer.exports) if trainer else {},
        "missing": list(captured.missing) if captured else [],
        "not_judged": judged.not_judged,
        "started": judged.started,
        "lacking": upstreams.lacking(),
        "verl": {"path": verl.path, "reason": verl.reason, "nearest_pin": verl.pin} if verl else {},
        "findings": [
            {
                "rule": finding.code,
                "refused": finding.refused,
                "subject": finding.subject,
                "found": finding.found,
                "why": finding.why,
                "fix": finding.fix,
            }
            for finding in judged.found
        ],
    }


_LABELS = {Severity.ERROR: ("red", "refused"), Severity.WARNING: ("yellow", "warning"), Severity.OK: ("green", "note")}


def _print(judged: _Judged) -> None:
    found, trainer = judged.found, judged.trainer
    if judged.not_judged:
        said = _("{not_judged}.").format(not_judged=judged.not_judged)
        terminal.paragraph(said, label=_("not judged: "), indent="  ")
        terminal.paragraph(judged.remedy, indent="  ")
    if trainer is not None:
        terminal.line(
            ngettext(
                "{module} in {tree}, with {count} setting",
                "{module} in {tree}, with {count} settings",
                len(trainer.overrides),
            ).format(module=trainer.module, tree=judged.tree, count=len(trainer.overrides))
        )
    if judged.verl is not None:
        near = _("; its nearest pin is {pin}").format(pin=judged.verl.pin) if judged.verl.pin else ""
        terminal.paragraph(
            _("{path}, {reason}{near}.").format(path=judged.verl.path, reason=judged.verl.reason, near=near),
            label=_("judged by: "),
            indent="  ",
        )
    if judged.started:
        terminal.paragraph(judged.started, indent="  ")
    upstreams.say_lacking(upstreams.lacking())
    for path in judged.captured.missing if judged.captured else ():
        terminal.paragraph(
            _("the script reads {path}, which is not on this machine").format(path=path),
            label=_("note: "),
            indent="  ",
        )
    for finding in found:
        style, label = _LABELS[finding.severity]
        terminal.line(terminal.styled(label, style), f"  {finding.code}: {finding.subject}")
        terminal.paragraph(
            _("Found {found}. {why}.").format(found=finding.found, why=capitalised(finding.why)),
            indent="    ",
        )
        fix = _("Proposal: {fix}.") if finding.severity is Severity.OK else _("Fix: {fix}.")
        terminal.paragraph(fix.format(fix=finding.fix), indent="    ")
    refused = sum(finding.refused for finding in found)
    warnings = sum(finding.severity is Severity.WARNING for finding in found)
    if not refused + warnings and judged.not_judged:
        terminal.echo(_("Nothing is known to be wrong with the rest."))
    elif not refused + warnings:
        terminal.line(terminal.styled(_("in order"), "green"), _(": nothing is known to be wrong with it"))
    else:
        terminal.paragraph(
            ngettext(
                "{refused} refused, {count} warning; `verl-npu explain CODE` says more of each.",
                "{refused} refused, {count} warnings; `verl-npu explain CODE` says more of each.",
                warnings,
            ).format(refused=refused, count=warnings)
        )
    terminal.echo(_("`verl-npu rehearse` runs it on virtual NPUs."))
