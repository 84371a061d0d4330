"""`verl-npu rehearse`: runs a launch script that is written for many NPUs on a few virtual NPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from verl_npu.cli import terminal, upstreams
from verl_npu.cli.options import example, json_option
from verl_npu.errors import CommandError, SourceError, VerlNpuError
from verl_npu.findings import Status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..jobs.capture import tree_of
from ..jobs.job import compose
from ..kernels.toolchain import Soc
from ..places import put
from ..rehearse import rehearsal
from ..rehearse.outcome import Kind
from ..rehearse.preparation import ENGINES, Request
from ..rehearse.rehearsal import Rehearsed, ScaledJob, scale_down
from ..rehearse.rehearsal import rehearse as run
from ..rehearse.rules import RULES
from .kernels import show as show_kernels
from .kernels import soc_option
from .options import command, output_option, unconfined_option, verl_option
from .script import asked_trainer, say_unconfined

_RULES = [rule.name for rule in RULES]
_STYLES = {Kind.TRAINED: "green", Kind.REFUSED: "yellow", Kind.FAILED: "red"}


@command(
    epilog=example(
        "verl-npu rehearse examples/grpo_trainer/run_qwen2_5_7b_grpo_npu.sh",
        "verl-npu rehearse run_sft.sh -- 8 ./checkpoints",
        "verl-npu rehearse -- python3 -m verl.trainer.main_ppo data.seed=1",
    )
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@verl_option
@click.option("--pin", metavar="PIN", default="", help="Fail if the verl source is not at this pin.")
@click.option(
    "--npus",
    type=click.IntRange(1, 64),
    help="The number of virtual NPUs [default: the minimum that still uses every kind of parallelism in the script].",
)
@click.option(
    "--steps", type=click.IntRange(1), default=2, show_default=True, help="The number of training steps to run."
)
@click.option(
    "--rollout",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="The rollout engine to use in the rehearsal.",
)
@click.option(
    "--architecture",
    default="",
    help="The model's architecture, if rehearse cannot determine the architecture from the model's path.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=900.0,
    show_default=True,
    help="The time limit for each training run, in seconds.",
)
@click.option(
    "--without",
    metavar="RULE",
    multiple=True,
    type=click.Choice(_RULES),
    help="Do not apply this scaling rule. You can repeat this option.",
)
@click.option(
    "--kernels", is_flag=True, help="Use Ascend's compiler to compile the Triton kernels that the job launches."
)
@soc_option("With --kernels: the NPU type to compile the kernels for.")
@unconfined_option
@click.option("--plan-only", is_flag=True, help="Only print how the job would be scaled down.")
@output_option("outputs/rehearse")
@json_option()
def rehearse(
    script: Path | None,
    arguments: tuple[str, ...],
    verl: Path | None,
    pin: str,
    npus: int | None,
    steps: int,
    rollout: str,
    architecture: str,
    timeout: float,
    without: tuple[str, ...],
    kernels: bool,
    soc: str,
    unconfined: bool,
    plan_only: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Run a scaled-down launch script on a few virtual NPUs.

    SIMULATED: a rehearsal does not measure real NPUs.

    First, SCRIPT runs in a sandbox, where stand-ins replace the programs that it starts. From this run, the command
    learns how the script starts the trainer. Then the trainer runs in a sandbox on virtual NPUs, with a small random
    model of the same architecture, generated data, short sequences, a few NPUs, and a few steps. All other settings
    keep their values. Write the arguments of the script after --. If you omit SCRIPT, write the trainer's command
    after --. If SCRIPT is a folder, the command rehearses every *.sh file in the folder and its subfolders.

    With --kernels, each launch of a Triton kernel is recorded, and Triton's interpreter computes it, which is slow.
    After the run, the kernels are compiled with the recorded arguments, as `verl-npu kernels` does.

    Exit status: 0 if the job trained; 1 if the job failed, if verl-npu rejected the job, or if a kernel does not
    compile; 2 if the job cannot be rehearsed.
    """
    judged_for = Soc(soc) if kernels else None
    request = Request(output.resolve(), steps, npus, rollout, architecture, timeout, without, unconfined, judged_for)
    say_unconfined(unconfined)
    if script is not None and script.is_dir():
        _check_pin(pin, (verl or tree_of(script / "script")).resolve())
        sys.exit(_folder(script, verl, request, as_json))
    trainer, tree, name = asked_trainer("rehearse", script, arguments, verl, unconfined)
    _check_pin(pin, tree)
    made = scale_down(compose(trainer, tree, unconfined), name, request)
    if plan_only:
        click.echo(json.dumps(rehearsal.scaled_content(made), indent=2, default=str)) if as_json else _print_plan(made)
        return
    if not as_json:
        _print_plan(made)
    done = run(made, request, (lambda step, metrics: None) if as_json else _print_step)
    result = rehearsal.content(name if script is None else str(script), done, upstreams.nearest_pin(tree))
    put(made.folder / "result.json", json.dumps(result, indent=2, default=str).encode())
    click.echo(json.dumps(result, indent=2, default=str)) if as_json else _print_outcome(done)
    sys.exit(Status.FINE if done.outcome.kind is Kind.TRAINED and not _is_refused(done) else Status.FOUND)


def _is_refused(done: Rehearsed) -> bool:
    """Return whether at least one of the job's kernels does not compile."""
    return done.kernels is not None and any(each.best.verdict.fails for each in done.kernels.judged)


def _check_pin(asked: str, tree: Path) -> None:
    found = upstreams.nearest_pin(tree) if asked else ""
    if found != asked:
        raise CommandError(
            subject=f"--pin {asked}",
            expected=_("verl at the pin {asked}, in {tree} or in this environment").format(asked=asked, tree=tree),
            found=_("a version of verl whose nearest pin is {found}").format(found=found),
            fix=_("specify a checkout of that pin with --verl, or install it with scripts/rehearse.sh --pin"),
        )


def _folder(folder: Path, verl: Path | None, request: Request, as_json: bool) -> int:
    """Rehearse each script in a folder, and write one page about all of them."""
    results: list[Mapping[str, object]] = []
    refused = False
    for script in sorted(folder.rglob("*.sh")):
        try:
            trainer, tree, name = asked_trainer("rehearse", script, (), verl, request.unconfined)
            made = scale_down(compose(trainer, tree, request.unconfined), name, request)
            done = run(made, request, lambda step, metrics: None)
            results.append(rehearsal.content(str(script), done, upstreams.nearest_pin(tree)))
            refused = refused or _is_refused(done)
        except VerlNpuError as error:
            results.append(rehearsal.error_content(str(script), error))
        if not as_json:
            terminal.line(f"{results[-1]['verdict']}: {script}")
    if not results:
        raise SourceError(
            subject=str(folder),
            found=_("the folder has no launch script (*.sh)"),
            fix=_("specify a folder with launch scripts"),
        )
    page = request.output / "report.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    put(page, rehearsal.page(results).encode())
    if as_json:
        click.echo(json.dumps(results, indent=2, default=str))
    else:
        terminal.line(_("report: {page}").format(page=page))
    verdicts = {each["verdict"] for each in results}
    if refused or verdicts & {Kind.REFUSED.value, Kind.FAILED.value}:
        return Status.FOUND
    return Status.FINE if verdicts == {Kind.TRAINED.value} else Status.NOT_JUDGED


def _print_plan(made: ScaledJob) -> None:
    layout = made.layout
    trainer = made.job.trainer
    terminal.line(
        ngettext(
            "{module} in {tree}, with {count} setting from the script",
            "{module} in {tree}, with {count} settings from the script",
            len(trainer.overrides),
        ).format(module=trainer.module, tree=made.job.tree, count=len(trainer.overrides))
    )
    dimensions = {
        "TP": layout.tensor,
        "PP": layout.pipeline,
        "CP": layout.context,
        "EP": layout.expert,
        "SP": layout.sequence,
        "DP": layout.data,
        "rollout TP": layout.rollout_tensor,
    }
    shown = _(", ").join(f"{name} {size}" for name, size in dimensions.items() if size > 1) or _(
        "no dimension above 1"
    )
    own = (
        _(", {rollout_npus} of them only for the rollout").format(rollout_npus=layout.rollout_npus)
        if layout.rollout_npus
        else ""
    )
    terminal.line(
        ngettext(
            "SIMULATED: {all_npus} virtual NPU{own} ({shown}), a small {architecture}",
            "SIMULATED: {all_npus} virtual NPUs{own} ({shown}), a small {architecture}",
            layout.all_npus,
        ).format(all_npus=layout.all_npus, own=own, shown=shown, architecture=made.architecture)
    )
    for note in made.notes:
        terminal.paragraph(note, label=_("note: "), indent="  ")
    terminal.echo()
    for name, reason, changes in rehearsal.by_rule(made):
        terminal.line(terminal.styled(name, "bold"), _(": {reason}").format(reason=reason))
        for change in changes:
            terminal.line(f"  {change.key}: {_short(change.before)} -> {_short(change.after)}")
    terminal.echo()


def _short(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"…{text[-58:]}"


def _print_step(step: int, metrics: Mapping[str, float]) -> None:
    wanted = ("critic/score/mean", "critic/rewards/mean", "actor/pg_loss", "actor/grad_norm", "train/loss")
    shown = [f"{name} {metrics[name]:.4g}" for name in wanted if name in metrics]
    terminal.line(
        _("step {step}: {shown}").format(
            step=step,
            shown=_(", ").join(shown)
            or ngettext("{count} metric", "{count} metrics", len(metrics)).format(count=len(metrics)),
        )
    )


def _print_outcome(done: Rehearsed) -> None:
    outcome = done.outcome
    terminal.echo()
    terminal.line(
        terminal.styled(outcome.kind.value, _STYLES[outcome.kind]),
        ngettext(
            ": {steps} step in {seconds:.0f} s. SIMULATED",
            ": {steps} steps in {seconds:.0f} s. SIMULATED",
            outcome.steps,
        ).format(steps=outcome.steps, seconds=done.seconds),
    )
    if outcome.failure is not None:
        failure = outcome.failure
        terminal.paragraph(failure.error, label=_("  first error: "), indent="    ")
        terminal.line(
            _("  in {process}, phase {phase}; probably raised by: {owner}").format(
                process=failure.process, phase=failure.phase, owner=failure.owner.value
            )
        )
        if failure.raised_in:
            terminal.line(_("  raised in {raised_in}").format(raised_in=failure.raised_in))
    states = _("; ").join(f"{name} {', '.join(each)}" for name, each in rehearsal.features(done).items())
    terminal.paragraph(states or _("no process wrote a manifest"), label=_("features: "), indent="  ")
    if done.run.left_out:
        terminal.paragraph(
            _("variables for the cluster, which the run did not get: {left_out}").format(
                left_out=_(", ").join(done.run.left_out)
            ),
            indent="  ",
        )
    if done.kernels is not None:
        terminal.echo()
        if done.kernels.judged:
            show_kernels(done.kernels)
        else:
            terminal.line(_("kernels: the job launched no Triton kernel"))
        terminal.echo()
    terminal.line(_("not shown: {not_shown}").format(not_shown=_(", ").join(rehearsal.NOT_SHOWN)))
    terminal.line(_("logs: {folder}").format(folder=done.scaled.folder))
