"""`verl-npu plan`: will a job of full size fit into its NPUs, and how long does a step take."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from ...errors import PlanError
from ..extras import need
from ..plan import report
from ..plan.hardware import GIB, HARDWARE
from ..plan.job import Holder
from ..plan.planning import Planned, Request
from ..plan.planning import plan as make
from ..plan.report import page
from ..plan.rollout import Rollout
from ..plan.search import Largest, Search, make_fit
from ..plan.search import largest_micro_batch as largest_of
from ..plan.timing import assumptions, spans, total
from ..plan.verdict import Fit, PhaseFit, Verdict, judge
from . import terminal
from .options import example, json_option, unconfined_option, verl_option
from .script import asked_trainer, say_unconfined

_STYLES = {Fit.FITS: "green", Fit.DOES_NOT: "red", Fit.FAILED: "red"}
_STATUS = {Fit.FITS: 0, Fit.DOES_NOT: 1, Fit.FAILED: 1}
_BAR = 40
_MARKS = {
    Holder.WEIGHTS: "W",
    Holder.ENGINE: "E",
    Holder.CACHE: "K",
    Holder.OPTIMIZER: "O",
    Holder.GRADIENTS: "G",
    Holder.GATHERED: "g",
    Holder.MESSAGES: "m",
    Holder.ACTIVATIONS: "a",
    Holder.RESERVE: "r",
}


@click.command(
    epilog=example(
        "verl-npu plan examples/grpo_trainer/run_qwen3-8b_npu.sh",
        "verl-npu plan run.sh --npu a3 --model-config config.json --html plan.html",
        "verl-npu plan run_sft.sh --largest-micro-batch",
        "verl-npu plan run.sh --compare before.json",
    )
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@verl_option
@click.option("--npu", type=click.Choice(list(HARDWARE)), default="a2", show_default=True, help="The NPUs of the job.")
@click.option(
    "--model-config", metavar="PATH", type=click.Path(path_type=Path), help="The config.json of the script's model."
)
@click.option(
    "--response-length", type=click.IntRange(1), help="Tokens of an answer [default: the most that the script allows]."
)
@click.option("--prompt-length", type=click.IntRange(1), help="Tokens of a question [default: alike].")
@click.option(
    "--lengths",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Measured lengths in place of both: JSON lines or a CSV with prompt and response of each sequence, or what "
    "verl wrote to trainer.rollout_data_dir.",
)
@click.option(
    "--spread",
    type=click.FloatRange(0, min_open=True),
    help="The standard deviation of the answers, as a part of their mean, which --response-length is then: 0.5.",
)
@click.option(
    "--picture-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens of the picture in each question, if the model takes pictures.",
)
@click.option(
    "--largest-micro-batch", is_flag=True, help="Look for the largest micro batch of the update that fits: more plans."
)
@unconfined_option
@click.option("--no-tries", is_flag=True, help="Do not look for settings that fit.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds a rank may take.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("outputs/plan"), show_default=True)
@click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="Write memory over time as a picture.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write one self-contained page.")
@click.option("--compare", metavar="FILE", type=click.Path(path_type=Path), help="A plan in JSON to compare with.")
@json_option("Print the plan as JSON.")
def plan(
    script: Path | None,
    arguments: tuple[str, ...],
    verl: Path | None,
    npu: str,
    model_config: Path | None,
    response_length: int | None,
    prompt_length: int | None,
    lengths: Path | None,
    spread: float | None,
    picture_tokens: int,
    largest_micro_batch: bool,
    unconfined: bool,
    no_tries: bool,
    timeout: float,
    output: Path,
    png: Path | None,
    html: Path | None,
    compare: Path | None,
    as_json: bool,
) -> None:
    """Tell whether a job of full size fits into its NPUs.

    SIMULATED: verl's own workers run in phantom memory on this machine, one process for all ranks of a kind, in a
    sandbox, as SCRIPT is read and composed in one; large
    tensors have shapes and no values. Memory is what they allocate, with a reserve that is printed. Time is a range
    from the operators and messages that there were. If it does not fit, settings are tried until it does.

    Exit status: 0 fits, 1 does not fit or failed, 2 it cannot be planned.
    """
    if png or html:
        need("matplotlib", "--png and --html", error=PlanError)
    if html:
        need("jinja2", "--html", error=PlanError)
    if lengths and (prompt_length or response_length or spread):
        raise click.UsageError(
            "--lengths takes the place of --prompt-length, --response-length and --spread: give one of them"
        )
    if spread and not response_length:
        raise click.UsageError("--spread is around a mean: give it as --response-length")
    before = report.read(compare) if compare else None
    say_unconfined(unconfined)
    trainer, tree, name = asked_trainer("plan", script, arguments, verl, unconfined)
    request = Request(
        output=output,
        hardware=HARDWARE[npu],
        model_config=model_config,
        response=response_length,
        prompt=prompt_length,
        lengths=lengths,
        spread=spread or 0.0,
        picture=picture_tokens,
        seconds=timeout,
        unconfined=unconfined,
    )
    told = (lambda text: None) if as_json else (lambda text: terminal.line(terminal.styled(text, "dim")))
    planned = make(trainer, tree, request, told)
    verdict = judge(planned)
    search = Search() if no_tries else make_fit(trainer, tree, request, planned, verdict, told)
    largest = largest_of(trainer, tree, request, planned, told) if largest_micro_batch else None
    found = report.content(name, planned, verdict, search, largest)
    (output / "plan.json").write_text(json.dumps(found, indent=1))
    if png:
        report.draw(planned.outcomes[0], verdict, f"{name}, rank {planned.outcomes[0].rank}: SIMULATED", png)
    if html:
        html.write_text(page(name, planned, verdict, search, largest))
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _print(planned, verdict, search, largest)
        if verdict.fit is Fit.DOES_NOT and not search.tries and not no_tries:
            reason = search.cause or "no setting is known that makes it fit"
            terminal.paragraph(f"{reason}: more NPUs, a smaller model or shorter sequences")
        if before is not None:
            _print_difference(before, found)
        terminal.line(f"all of it: {output / 'plan.json'}")
    sys.exit(_STATUS[verdict.fit])


def _print(planned: Planned, verdict: Verdict, search: Search, largest: Largest | None) -> None:
    share, model = planned.share, planned.model
    terminal.echo()
    terminal.line(
        terminal.styled(verdict.fit.value, _STYLES[verdict.fit]),
        f": {share.world} NPUs of {planned.hardware.name.upper()}, {verdict.capacity / GIB:.2f} GiB each. SIMULATED, "
        f"in {planned.seconds:.0f} s",
    )
    terminal.paragraph(
        f"{model.source}: {model.parameters / 1e9:.2f} billion parameters; sequences of {share.length} "
        f"tokens, {share.step_sequences} of them for a rank in a step",
        indent="  ",
    )
    for outcome in planned.outcomes:
        if outcome.error:
            terminal.paragraph(
                outcome.error, label=f"  rank {outcome.rank} failed in {outcome.failed_in}: ", indent="    "
            )
    terminal.echo()
    for phase in verdict.phases:
        _print_phase(phase, verdict)
    held = {holder for phase in verdict.phases for holder, size in phase.holders.items() if size}
    marks = [f"{mark} {holder.value}" for holder, mark in _MARKS.items() if holder.value in held]
    terminal.paragraph(", ".join(marks), indent="  ")
    terminal.echo()
    if planned.rollout:
        _print_rollout(planned.rollout)
    for each in verdict.reserve:
        terminal.paragraph(
            f"{each.size / GIB:.2f} GiB: {each.source}", label=f"  reserve, {each.name}: ", indent="    "
        )
    for note in planned.notes:
        terminal.paragraph(note, label="  note: ", indent="    ")
    _print_tries(search)
    if largest:
        _print_largest(largest)
    _print_time(planned)


def _print_rollout(rollout: Rollout) -> None:
    terminal.paragraph(
        f"rollout: gpu_memory_utilization {rollout.utilization} takes {rollout.taken / GIB:.1f} GiB, the weights "
        f"are {rollout.engine_weights / GIB:.1f} GiB, and the cache holds {rollout.sequences} sequences of full "
        "length",
        indent="  ",
    )


def _print_largest(largest: Largest) -> None:
    terminal.echo()
    terminal.line(terminal.styled("micro batches of the update", "bold"))
    for each in largest.probes:
        fit = Fit.FITS if each.fits else Fit.DOES_NOT
        needs = f", {each.phase} needs {each.needed / GIB:.2f} GiB" if each.needed else f", {each.phase} failed"
        terminal.line(f"  {largest.key}={each.size}: ", terminal.styled(fit.value, _STYLES[fit]), needs)
    if not largest.size:
        terminal.line("  none fits")
    elif largest.exact:
        terminal.line(f"  the largest that fits: {largest.size}")
    else:
        terminal.line(f"  {largest.size} fits; larger ones may, too")


def _print_phase(phase: PhaseFit, verdict: Verdict) -> None:
    bar = ""
    for holder, mark in _MARKS.items():
        bar += mark * round(_BAR * phase.holders.get(holder.value, 0) / verdict.capacity)
    terminal.line(
        f"{phase.phase:18} {phase.held / GIB:7.2f} GiB of tensors, needs {phase.needed / GIB:7.2f}  ",
        terminal.styled(f"{phase.fit.value:13}", _STYLES[phase.fit]),
        f"|{bar[: 2 * _BAR]:{_BAR}}|",
    )


def _print_tries(search: Search) -> None:
    if not search.tries:
        return
    terminal.echo()
    terminal.line(terminal.styled("tried", "bold"))
    for each in search.tries:
        settings = ", ".join(f"{key}={value}" for key, value in each.knob.changes)
        worst = each.verdict.worst
        terminal.line(
            f"  {settings} ({each.knob.why}): ",
            terminal.styled(each.verdict.fit.value, _STYLES[each.verdict.fit]),
            f", {worst.phase} needs {worst.needed / GIB:.2f} GiB",
        )
    if search.proposal:
        changes = " ".join(f"{key}={value}" for key, value in search.proposal.items())
        terminal.paragraph(changes, label="  it fits with: ", indent="    ")
    elif search.cause:
        terminal.paragraph(search.cause, label="  none of these settings makes it fit. ", indent="    ")
    else:
        terminal.line("  none of these settings makes it fit: more NPUs, a smaller model or shorter sequences")


def _print_time(planned: Planned) -> None:
    found = spans(planned)
    terminal.echo()
    terminal.line(terminal.styled("seconds of a step, from at best to at worst", "bold"))
    for span in (*found, total(found)):
        terminal.line(f"  {span.phase:18} {span.least:9.1f} {span.most:9.1f}")
    for assumption in assumptions(planned):
        terminal.paragraph(assumption, label="  assumed: ", indent="    ")


def _print_difference(before: Mapping[str, object], found: Mapping[str, object]) -> None:
    terminal.echo()
    terminal.line(terminal.styled(f"compared with {before['name']}", "bold"))
    old = {str(each["phase"]): each for each in before["phases"]}  # type: ignore[attr-defined]
    for each in found["phases"]:  # type: ignore[attr-defined]
        other = old.get(str(each["phase"]))
        if other is None:
            terminal.line(f"  {each['phase']:18} is new")
            continue
        change = (each["needed"] - other["needed"]) / GIB
        terminal.line(f"  {each['phase']:18} {change:+8.2f} GiB  {other['fit']} -> {each['fit']}")
