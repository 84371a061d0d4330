"""`verl-npu lint`: checks a launch script, or MindSpeed overrides, for known problems."""

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
from verl_npu.errors import PlanError, SourceError, VerlNpuError
from verl_npu.findings import Finding, Severity, Status
from verl_npu.language import capitalised, ngettext
from verl_npu.language import gettext as _
from verl_npu.pins import pins

from ..jobs.capture import Capture, capture, check_text, required_verl, tree_of
from ..jobs.job import Job, compose, follows_all, uses_verl
from ..jobs.levers import advice
from ..jobs.rules import findings, unexported
from ..jobs.script import Script
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer, runtime_environment, trainer_of
from ..plan.starting import Start, started, without_repeats
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
@source_option("Check the script against this checkout of verl.")
@unconfined_option
@click.option(
    "--start",
    "starts",
    is_flag=True,
    help="Also start the job on phantom NPUs (tensors have shapes but no values), and stop the job before its "
    "first training step.",
)
@click.option("--no-advice", is_flag=True, help="Do not print advice about settings that might make the job faster.")
@click.option(
    "--model-config",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="With --start: the path of the config.json of the script's model, if lint cannot find this file "
    "automatically.",
)
@click.option(
    "--overrides",
    "text",
    metavar="WHAT",
    help="Check only the MindSpeed overrides in WHAT, which is 'key=value …', a Hydra command line, or the "
    "path of a script.",
)
@click.option("--list-overrides", is_flag=True, help="List MindSpeed's features and the overrides that enable them.")
@click.option(
    "--revision",
    help="Check overrides against this recorded revision of MindSpeed [default: the installed MindSpeed].",
)
@click.option(
    "--pin",
    type=click.Choice([*pins()]),
    help="Check overrides against the MindSpeed revision that the documentation of the given verl version requires.",
)
@json_option()
def lint(
    script: Path | None,
    arguments: tuple[str, ...],
    source: str,
    unconfined: bool,
    starts: bool,
    no_advice: bool,
    model_config: Path | None,
    text: str | None,
    list_overrides: bool,
    revision: str | None,
    pin: str | None,
    as_json: bool,
) -> None:
    """Check a launch script for known problems.

    The script runs in a sandbox, without your home folder and without a network. Stand-ins replace the programs that
    the script starts. Hydra composes the job's settings in the sandbox, too. Write the arguments of the script after
    --. The sandbox needs the package bubblewrap. Without a sandbox, lint checks only the script's text, and the exit
    status is 2.

    With --start, the job also runs in the sandbox, in one process, on the number of phantom NPUs that the script
    requests. The workers build their models, and the engine builds its configuration. The run stops before it computes
    the first gradients. If upstream raises an error during this run, lint prints the error and the line that raised
    the error.

    MindSpeed overrides are checked against the installed MindSpeed. If MindSpeed is not installed and you do not
    specify a revision, overrides are checked against all recorded revisions. In this case, lint rejects an override
    only if the override fails with every recorded revision.

    Exit status: 0 if there is no problem, or only warnings and advice; 1 if there is an error; 2 if the script, or a
    part of it, cannot be checked.
    """
    chosen = [script is not None, text is not None, list_overrides]
    if sum(chosen) != 1:
        raise click.UsageError(_("specify exactly one of SCRIPT, --overrides WHAT, or --list-overrides"))
    if script is not None:
        if revision is not None or pin is not None:
            raise click.UsageError(_("--revision and --pin need --overrides or --list-overrides"))
        check_script(script, source, arguments, as_json, unconfined, starts, model_config, not no_advice)
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
    starts: bool,
    model_config: Path | None,
    advises: bool,
) -> None:
    """Check a script against a source tree or an installation of verl, print the result, and exit.

    The script is checked against the verl in `source`, the verl in the script's own source tree, or the installed
    verl. If no sandbox is possible and `unconfined` is false, only the text of the script is checked.

    Exit status: 0 if nothing is refused; 1 if something is refused; 2 if the script or a part of it cannot be checked.
    """
    say_unconfined(unconfined)
    if source != upstreams.INSTALLED and not Path(source).is_dir():
        raise SourceError(
            subject=f"--source {source}",
            expected=_("a folder: the source tree that the script is started in"),
            found=_("a path that is not a folder"),
            fix=_("specify a folder (unpack a wheel first), or omit --source"),
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
        starting = _started(job, model_config, unconfined) if starts and job else Start()
        foreign = _("the settings, because {module} does not import verl").format(module=trainer.module)
        verls = job is None or uses_verl(job)
        unread = [_unread(asked, lacking), "" if verls else foreign, starting.not_judged]
        judged = _Judged(
            script=captured.script,
            tree=captured.tree,
            found=[
                *([refusal] if refusal else []),
                *without_repeats(findings(asked), starting.found),
                *starting.found,
                *(advice(asked) if advises else ()),
            ],
            started=starting.said,
            captured=captured,
            trainer=trainer,
            verl=_verl(tree, source, asked.pin) if verls else None,
            required=required_verl(script),
            not_judged=_("; ").join(filter(None, unread)),
            remedy=_("Install {lacking}: pip install 'verl-npu-workbench[scripts]'.").format(
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


def _started(job: Job, model_config: Path | None, unconfined: bool) -> Start:
    try:
        return started(job, model_config, unconfined)
    except PlanError as error:
        return Start(not_judged=_("the start of the job ({error})").format(error=error))


_READERS = {"hydra": "hydra-core", "yaml": "PyYAML"}
"""The packages that are needed to read a script's settings and files, by module name."""


def _unread(script: Script, lacking: Sequence[str]) -> str:
    """Describe the parts of the script that were not checked because packages are missing. Return an empty string if
    every part was checked."""
    parts = [_("the settings, and the rules that depend on them")] if lacking else []
    if script.submitted and script.runtime is None:
        parts.append(_("the variables of the job's runtime environment"))
    return (
        _("{parts}, because {prefix} has no {lacking}").format(
            parts=_(", and ").join(parts), prefix=sys.prefix, lacking=_(" and no ").join(lacking)
        )
        if parts
        else ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verl:
    """The verl installation or source tree that a script was checked against."""

    path: str
    reason: str
    """The reason why this verl was chosen."""
    pin: str
    """The nearest pin of this verl."""


def _verl(tree: Path, source: str, pin: str) -> _Verl | None:
    """Return the verl that a job started in `tree` uses, or None if there is no verl."""
    if upstreams.has_verl(tree):
        named = source != upstreams.INSTALLED
        reason = _("in the source tree that --source names") if named else _("in the source tree of the script")
        return _Verl(path=str(tree / "verl"), reason=reason, pin=pin)
    spec = importlib.util.find_spec("verl")
    places = [*(spec.submodule_search_locations or ())] if spec is not None else []
    return (
        _Verl(path=places[0], reason=_("the installed verl, because {tree} has none").format(tree=tree), pin=pin)
        if places
        else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A checked script and its findings."""

    script: Path
    tree: Path
    found: Sequence[Finding]
    captured: Capture | None = None
    trainer: Trainer | None = None
    not_judged: str = ""
    """The parts that were not checked, and the reason. Empty if every part was checked."""
    remedy: str = ""
    """How to get those parts checked, too."""
    verl: _Verl | None = None
    required: Sequence[str] = ()
    """How to install the verl that the script's recipe names."""
    started: str = ""
    """How far the job got when it was started. Empty if it was not started."""


def _judged_text(script: Path, reason: str) -> _Judged:
    """Check a script's text without running the script: bash must be able to parse it, and it must export the
    variables that it sets."""
    check_text(script)
    found = list(unexported(script.read_text(errors="replace"), ()))
    left_out = _("the trainer and its settings, because no sandbox is possible here ({reason})").format(reason=reason)
    return _Judged(
        script=script.resolve(),
        tree=tree_of(script).resolve(),
        found=found,
        not_judged=left_out,
        remedy=_(
            "Install the package bubblewrap, or add --unconfined, which lets the script use your home folder and your "
            "network."
        ),
    )


def _composed(trainer: Trainer, tree: Path, unconfined: bool) -> tuple[Job | None, Finding | None]:
    """Compose the job's settings with Hydra. A Hydra error that would stop the job at its start is returned as a
    finding."""
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
            why=_("the trainer fails with the same error before anything starts"),
            fix=error.fix,
        )
    if not job.dangling or not follows_all(job):
        return job, None
    return job, Finding(
        code="hydra",
        severity=Severity.ERROR,
        subject=", ".join(job.dangling),
        expected=_("a reference to a setting that exists"),
        found=_(", ").join(job.dangling.values()),
        why=_(
            "the trainer resolves all references before the first step, and OmegaConf raises InterpolationKeyError "
            "for this reference"
        ),
        fix=_("restore the setting that the reference points to, or replace the reference with a value"),
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
        "head": captured.head if captured else "",
        "required_verl": list(judged.required),
        "not_judged": judged.not_judged,
        "started": judged.started,
        "lacking": upstreams.missing_packages(),
        "verl": {"path": verl.path, "reason": verl.reason, "nearest_pin": verl.pin} if verl else {},
        "findings": [
            {
                "rule": finding.code,
                "severity": finding.severity.value,
                "refused": finding.refused,
                "subject": finding.subject,
                "found": finding.found,
                "why": finding.why,
                "fix": finding.fix,
                "source": list(finding.source),
            }
            for finding in judged.found
        ],
    }


_LABELS = {Severity.ERROR: ("red", "refused"), Severity.WARNING: ("yellow", "warning"), Severity.OK: ("green", "note")}


def _print(judged: _Judged) -> None:
    found = [finding for finding in judged.found if finding.severity is not Severity.ADVICE]
    trainer = judged.trainer
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
            label=_("checked against: "),
            indent="  ",
        )
    if judged.started:
        terminal.paragraph(judged.started, indent="  ")
    upstreams.print_missing(upstreams.missing_packages())
    for each in judged.required:
        terminal.paragraph(
            _("the recipe's REQUIRED_VERL.txt says: {command}").format(command=each), label=_("note: "), indent="  "
        )
    if judged.captured is not None and judged.captured.head:
        terminal.paragraph(
            _("the script was run as on the head node, whose address in the script is {head}").format(
                head=judged.captured.head
            ),
            label=_("note: "),
            indent="  ",
        )
    for path in judged.captured.missing if judged.captured else ():
        terminal.paragraph(
            _("the script reads {path}, but this file is not on this machine").format(path=path),
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
        terminal.echo(_("The rest has no known problem."))
    elif not refused + warnings:
        terminal.line(terminal.styled(_("in order"), "green"), _(": no known problem"))
    else:
        terminal.paragraph(
            ngettext(
                "{refused} refused, {count} warning; `verl-npu explain CODE` says more about each.",
                "{refused} refused, {count} warnings; `verl-npu explain CODE` says more about each.",
                warnings,
            ).format(refused=refused, count=warnings)
        )
    _print_advice([finding for finding in judged.found if finding.severity is Severity.ADVICE])
    terminal.echo(_("`verl-npu rehearse` runs the script on virtual NPUs."))


def _print_advice(found: Sequence[Finding]) -> None:
    if found:
        terminal.echo(_("Advice on the job's speed, with figures from other jobs:"))
    for finding in found:
        terminal.line(terminal.styled(_("advice"), "cyan"), f"  {finding.code}: {finding.subject}")
        said = _("{figure} ({conditions}). Try: {fix}. Source: {source}.").format(
            figure=capitalised(finding.found),
            conditions=finding.why,
            fix=finding.fix,
            source=_(", ").join(finding.source),
        )
        terminal.paragraph(said, indent="    ")
