"""`verl-npu plan`: reports whether a full-size job fits into the memory of its NPUs, and how long a step takes."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import PlanError
from verl_npu.findings import Status
from verl_npu.language import gettext as _

from ..extras import need
from ..places import put
from ..plan import report
from ..plan.hardware import GIB, HARDWARE
from ..plan.history import history as each_step
from ..plan.job import Holder
from ..plan.planning import TOGETHER, Planned, Request
from ..plan.planning import plan as make
from ..plan.report import page
from ..plan.rollout import Rollout
from ..plan.search import Largest, Search, make_fit
from ..plan.search import largest_micro_batch as largest_of
from ..plan.snapshot import Comparison, compare, read
from ..plan.timing import assumptions, spans, total
from ..plan.verdict import FIGURE, Fit, PhaseFit, Verdict, allocated, host_peaks, judge
from .options import command, html_option, output_option, refuse_ignored, unconfined_option, verl_option
from .script import asked_trainer, is_program, say_unconfined

_STYLES = {Fit.FITS: "green", Fit.DOES_NOT: "red", Fit.MAY_NOT: "yellow", Fit.FAILED: "red"}
_STATUS = {fit: Status.FINE if fit is Fit.FITS else Status.FOUND for fit in Fit}
_BAR = 40
_PLACES = 5
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


@command(
    epilog=example(
        "verl-npu plan examples/grpo_trainer/run_qwen3-8b_npu.sh",
        "verl-npu plan run.sh --npu a3 --model-config config.json --html plan.html",
        "verl-npu plan run_sft.sh --largest-micro-batch",
    )
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@verl_option
@click.option(
    "--npu",
    type=click.Choice(list(HARDWARE)),
    default="a2",
    show_default=True,
    help="The NPU type that the job will run on.",
)
@click.option(
    "--model-config",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The path of the config.json of the script's model, if plan cannot find this file automatically.",
)
@click.option(
    "--response-length",
    type=click.IntRange(1),
    help="The number of tokens in each response [default: the script's maximum].",
)
@click.option(
    "--prompt-length",
    type=click.IntRange(1),
    help="The number of tokens in each prompt [default: the script's maximum].",
)
@click.option(
    "--lengths",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with measured lengths, to use instead of --prompt-length and --response-length: a CSV or "
    "JSON Lines file with the columns prompt and response, or a file or folder that verl wrote to "
    "trainer.rollout_data_dir.",
)
@click.option(
    "--spread",
    type=click.FloatRange(0, min_open=True),
    help="The standard deviation of the response lengths divided by their mean, for example 0.5. With this "
    "option, --response-length is the mean.",
)
@click.option(
    "--picture-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The number of tokens for the image in each prompt, if the model accepts images.",
)
@click.option(
    "--largest-micro-batch",
    is_flag=True,
    help="Also search for the largest micro-batch size for which the update phase fits into memory. The "
    "search computes several additional plans.",
)
@unconfined_option
@click.option(
    "--no-tries",
    is_flag=True,
    help="If the job does not fit into memory, do not search for settings that make the job fit.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="The time limit for each rank, in seconds.",
)
@click.option(
    "--memory",
    metavar="GIB",
    type=click.FloatRange(0, min_open=True),
    help="The maximum amount of this machine's memory that `plan` itself uses to run ranks of the job. At most two "
    "ranks run at the same time. [default: all available memory]",
)
@click.option(
    "--host-memory",
    metavar="GIB",
    type=click.FloatRange(0, min_open=True),
    help="The host memory of each machine of the job. If the job's tensors need more host memory, the job "
    "does not fit.",
)
@output_option("outputs/plan")
@click.option(
    "--png",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Save a plot of the memory use over time to this PNG file.",
)
@html_option
@click.option(
    "--history",
    metavar="GOOD..BAD",
    help="Plan the job at each commit in this range, and report the commits that changed the job's memory. "
    "--verl must be a clone of verl that contains these commits. A commit is skipped if the job reads none "
    "of the files that the commit changes.",
)
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A memory snapshot of a run of the job, which verl writes with global_profiler.tool=torch_memory. `plan` "
    "compares what held memory at the snapshot's peak with the most similar moment of the plan.",
)
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
    memory: float | None,
    host_memory: float | None,
    output: Path,
    png: Path | None,
    html: Path | None,
    history: str | None,
    against: Path | None,
    as_json: bool,
) -> None:
    """Check whether a full-size job fits into the memory of its NPUs.

    SIMULATED: verl's own workers run on this machine, on phantom NPUs, whose large tensors have shapes but no values.
    One process represents all ranks of the same kind. SCRIPT and the workers run in a sandbox. The planned memory is
    the sum of the workers' allocations and a reserve; plan also prints the reserve. The step time is a range, which is
    computed from the operators and the messages. If the job does not fit, plan searches for settings that make the job
    fit.

    Exit status: 0 if the job fits; 1 if the job does not fit or fails; 2 if the job cannot be planned. With --history,
    the status is 0 if every plan shows the same memory, and 1 if a commit changes the memory or cannot be planned.
    """
    if history is not None:
        refuse_ignored("--history", "png", "html", "largest_micro_batch", "no_tries", "against")
    if png or html:
        need("matplotlib", "--png and --html", error=PlanError)
    if html:
        need("jinja2", "--html", error=PlanError)
    _refuse_lengths(lengths, prompt_length, response_length, spread)
    _refuse_places(output, png, html)
    snapshot = read(against) if against else None
    say_unconfined(unconfined)
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
        memory=int((memory or 0) * GIB / TOGETHER),
        unconfined=unconfined,
        sites=snapshot is not None,
    )
    if history is not None:
        sys.exit(_print_history(history, script, arguments, verl, request, as_json))
    trainer, tree, name = asked_trainer("plan", script, arguments, verl, unconfined)
    planned = make(trainer, tree, request)
    verdict = judge(planned)
    search = Search() if no_tries else make_fit(trainer, tree, request, planned, verdict)
    largest = largest_of(trainer, tree, request, planned) if largest_micro_batch else None
    compared = compare(planned, snapshot) if snapshot and verdict.fit is not Fit.FAILED else None
    found = report.content(name, planned, verdict, search, largest, compared)
    peaks = host_peaks(planned)
    host_fits = host_memory is None or max(peaks.values(), default=0) <= host_memory * GIB
    put(output / "plan.json", json.dumps(found, indent=1).encode())
    if png:
        report.draw(
            planned.outcomes[0],
            verdict,
            _("{name}, rank {rank}: SIMULATED").format(name=name, rank=planned.outcomes[0].rank),
            png,
        )
    if html:
        put(html, page(name, planned, verdict, search, largest).encode())
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _print(planned, verdict, search, largest, peaks, host_fits)
        if verdict.fit.lacks and not search.tries and not no_tries:
            reason = search.cause or _("no known setting makes the job fit")
            terminal.paragraph(
                _("{reason}: use more NPUs, a smaller model, or shorter sequences").format(reason=reason)
            )
        if compared:
            _print_comparison(compared)
        terminal.line(_("the whole plan: {output}").format(output=output / "plan.json"))
    sys.exit(_STATUS[verdict.fit] if host_fits else Status.FOUND)


def _print_history(
    commits: str, script: Path | None, arguments: tuple[str, ...], verl: Path | None, request: Request, as_json: bool
) -> Status:
    """Plan the job at each commit of the range. Return FOUND if a commit changed the memory, or cannot be planned."""
    if verl is None:
        raise click.UsageError(_("--history also needs --verl CLONE, where CLONE is a clone of verl with its history"))
    # A script in the clone, or a script that only its commits have, is taken from the commit.
    inside = None
    if (
        script is not None
        and not is_program(str(script))
        and (not script.is_file() or script.resolve().is_relative_to(verl.resolve()))
    ):
        inside = script.resolve().relative_to(verl.resolve()) if script.is_file() else script

    def plan_at(tree: Path) -> Planned:
        chosen = tree / inside if inside is not None else script
        trainer, where, _name = asked_trainer("plan", chosen, arguments, tree, request.unconfined)
        return make(trainer, where, request)

    status, same = Status.FINE, _("planned, to compare the others with")
    for step in each_step(verl, commits, plan_at):
        if step.moves or step.error:
            status = Status.FOUND
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(step)))
            continue
        said = step.error or (same if step.planned else _("not planned: changes no file of the job"))
        if step.planned and not step.error:
            same = _("the same memory")
        terminal.paragraph(step.subject, label=f"{step.commit[:10]} ", indent="  ")
        for move in step.moves:
            terminal.line(
                _("  {phase}: {before:.2f} to {after:.2f} GiB; {holder} {by:+.2f} GiB").format(
                    phase=move.phase,
                    before=move.before / GIB,
                    after=move.after / GIB,
                    holder=move.holder,
                    by=move.by / GIB,
                )
            )
        if not step.moves:
            terminal.paragraph(said, label="  ", indent="  ")
    return status


def _refuse_places(output: Path, *files: Path | None) -> None:
    """Raise PlanError before any work starts if the output folder or a file cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(error.filename, error.strerror or str(error)) from None
    for file in filter(None, files):
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise _no_place(file, _("a folder, or a path that is not writable"))


def _no_place(path: object, found: str) -> PlanError:
    return PlanError(
        subject=str(path),
        expected=_("a writable folder for --output, and writable files for --png and --html"),
        found=found,
        fix=_("specify another path"),
    )


def _refuse_lengths(
    lengths: Path | None, prompt_length: int | None, response_length: int | None, spread: float | None
) -> None:
    if lengths and (prompt_length or response_length or spread):
        raise click.UsageError(
            _(
                "--lengths cannot be combined with --prompt-length, --response-length, or --spread: specify only "
                "--lengths, or remove --lengths"
            )
        )
    if spread and not response_length:
        raise click.UsageError(_("--spread requires the mean response length: specify it with --response-length"))


def _print(
    planned: Planned,
    verdict: Verdict,
    search: Search,
    largest: Largest | None,
    peaks: Mapping[str, int],
    host_fits: bool,
) -> None:
    _print_head(planned, verdict)
    terminal.echo()
    if verdict.fit is Fit.FAILED:
        return
    for phase in verdict.phases:
        _print_phase(phase, verdict)
    held = {holder for phase in verdict.phases for holder, size in phase.holders.items() if size}
    marks = [f"{mark} {holder.value}" for holder, mark in _MARKS.items() if holder.value in held]
    terminal.paragraph(_(", ").join(marks), indent="  ")
    terminal.echo()
    if planned.rollout:
        _print_rollout(planned.rollout)
        _print_allocated(**allocated(planned))
    _print_host(planned, peaks, host_fits)
    for each in verdict.reserve:
        terminal.paragraph(
            _("{size:.2f} GiB: {source}").format(size=each.size / GIB, source=each.source),
            label=_("  reserve, {each}: ").format(each=each.name),
            indent="    ",
        )
    for note in planned.notes:
        terminal.paragraph(note, label=_("  note: "), indent="    ")
    _print_tries(search)
    if largest:
        _print_largest(largest)
    _print_time(planned)


def _print_head(planned: Planned, verdict: Verdict) -> None:
    share, model = planned.share, planned.model
    terminal.echo()
    terminal.line(
        terminal.styled(verdict.fit.value, _STYLES[verdict.fit]),
        _(": {world} NPUs of {hardware}, {capacity:.2f} GiB each. SIMULATED, in {seconds:.0f} s").format(
            world=share.world,
            hardware=planned.hardware.name.upper(),
            capacity=verdict.capacity / GIB,
            seconds=planned.seconds,
        ),
    )
    terminal.paragraph(
        _(
            "{source}: {parameters:.2f} billion parameters; {step_sequences} sequences of {length} "
            "tokens for each rank and step"
        ).format(
            source=model.source,
            parameters=model.parameters / 1000000000.0,
            length=share.length,
            step_sequences=share.step_sequences,
        ),
        indent="  ",
    )
    for outcome in planned.outcomes:
        if outcome.error:
            terminal.paragraph(
                outcome.error,
                label=_("  rank {rank} failed in {failed_in}: ").format(
                    rank=outcome.rank, failed_in=outcome.failed_in
                ),
                indent="    ",
            )


def _print_rollout(rollout: Rollout) -> None:
    terminal.paragraph(
        _(
            "rollout: gpu_memory_utilization {utilization} gives the engine {taken:.1f} GiB; its weights "
            "take {engine_weights:.1f} GiB, and its cache holds {sequences} sequences of full length"
        ).format(
            utilization=rollout.utilization,
            taken=rollout.taken / GIB,
            engine_weights=rollout.engine_weights / GIB,
            sequences=rollout.sequences,
        ),
        indent="  ",
    )
    if rollout.servers:
        terminal.paragraph(
            _(
                "{servers} more NPUs only serve the rollout; a weight sync needs buffers of {buckets:.1f} "
                "GiB on each NPU of the trainer and {buckets_of_server:.1f} GiB on each NPU of the rollout"
            ).format(
                servers=rollout.servers,
                buckets=rollout.buckets / GIB,
                buckets_of_server=rollout.buckets_of_server / GIB,
            ),
            indent="  ",
        )


def _print_allocated(trainer: int, engine: int) -> None:
    said = _("verl's {figure}: {trainer:.2f} GiB of tensors").format(figure=FIGURE, trainer=trainer / GIB)
    if engine:
        said += _(" and {engine:.2f} GiB of the engine, which runs in the trainer's process").format(
            engine=engine / GIB
        )
    terminal.paragraph(said, indent="  ")


def _print_host(planned: Planned, peaks: Mapping[str, int], fits: bool) -> None:
    if not any(peaks.values()):
        return
    phase = max(peaks, key=peaks.__getitem__)
    said = _("{size:.1f} GiB of tensors on each machine in {phase}, at most").format(
        size=peaks[phase] / GIB, phase=phase
    )
    rollout = planned.rollout
    if rollout and rollout.sleeps and rollout.weights:
        said += _("; an engine that sleeps at level 1 keeps {size:.1f} GiB more there").format(
            size=rollout.weights * planned.share.local / GIB
        )
    label = _("  host: ") if fits else _("  host, does not fit: ")
    terminal.paragraph(said, label=label, indent="    ")


def _print_largest(largest: Largest) -> None:
    terminal.echo()
    terminal.line(terminal.styled(_("micro batches of the update"), "bold"))
    for each in largest.probes:
        fit = Fit.FITS if each.fits else Fit.DOES_NOT
        needs = (
            _(", {phase} needs {needed:.2f} GiB").format(phase=each.phase, needed=each.needed / GIB)
            if each.needed
            else _(", {phase} failed").format(phase=each.phase)
        )
        terminal.line(f"  {largest.key}={each.size}: ", terminal.styled(fit.value, _STYLES[fit]), needs)
    if not largest.size:
        terminal.line(_("  no size fits"))
    elif largest.exact:
        terminal.line(_("  the largest size that fits: {size}").format(size=largest.size))
    else:
        terminal.line(_("  {size} fits; larger sizes may fit, too").format(size=largest.size))


def _print_phase(phase: PhaseFit, verdict: Verdict) -> None:
    bar = ""
    for holder, mark in _MARKS.items():
        bar += mark * round(_BAR * phase.holders.get(holder.value, 0) / verdict.capacity)
    terminal.line(
        _("{phase} {held:7.2f} GiB of tensors, needs {needed:7.2f}  ").format(
            phase=terminal.padded(phase.phase, 18), held=phase.held / GIB, needed=phase.needed / GIB
        ),
        terminal.styled(terminal.padded(phase.fit.value, 13), _STYLES[phase.fit]),
        f"|{bar[: 2 * _BAR]:{_BAR}}|",
    )


def _print_tries(search: Search) -> None:
    if not search.tries:
        return
    terminal.echo()
    terminal.line(terminal.styled("tried", "bold"))
    for each in search.tries:
        settings = _(", ").join(f"{key}={value}" for key, value in each.knob.changes)
        worst = each.verdict.worst
        terminal.line(
            _("  {settings} ({why}): ").format(settings=settings, why=each.knob.why),
            terminal.styled(each.verdict.fit.value, _STYLES[each.verdict.fit]),
            _(", {phase} needs {needed:.2f} GiB").format(phase=worst.phase, needed=worst.needed / GIB),
        )
    if search.proposal:
        changes = " ".join(f"{key}={value}" for key, value in search.proposal.items())
        terminal.paragraph(changes, label=_("  the job fits with: "), indent="    ")
    elif search.cause:
        terminal.paragraph(search.cause, label=_("  none of these settings makes the job fit. "), indent="    ")
    else:
        terminal.line(
            _("  none of these settings makes the job fit: use more NPUs, a smaller model, or shorter sequences")
        )


def _print_comparison(found: Comparison) -> None:
    terminal.echo()
    title = _("GiB of tensors: planned at the most similar time, in {phase}, and held at the peak of {events} events")
    if not found.events:
        title = _("GiB of tensors: planned at the most similar time, in {phase}, and held at the end: no history")
    terminal.line(terminal.styled(title.format(phase=found.phase, events=found.events), "bold"))
    for name in dict.fromkeys((*found.planned, *found.held)):
        planned, held = found.planned.get(name, 0) / GIB, found.held.get(name, 0) / GIB
        terminal.line(f"  {terminal.padded(name, 34)} {planned:9.3f} {held:9.3f} {held - planned:+9.3f}")
    for place, size in list(found.places.items())[:_PLACES]:
        terminal.paragraph(place, label=_("  not planned, {size:.3f} GiB: ").format(size=size / GIB), indent="    ")


def _print_time(planned: Planned) -> None:
    found = spans(planned)
    terminal.echo()
    terminal.line(terminal.styled(_("seconds of a step, best and worst case"), "bold"))
    for span in (*found, total(found, planned.servers)):
        terminal.line(f"  {terminal.padded(span.phase, 18)} {span.least:9.1f} {span.most:9.1f}")
    for assumption in assumptions(planned):
        terminal.paragraph(assumption, label=_("  assumed: "), indent="    ")
