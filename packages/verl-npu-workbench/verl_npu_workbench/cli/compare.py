"""`verl-npu compare`: compares a training run on NPUs with another training run by the standards of the Ascend
ecosystem. With --merged, it compares a merged model with its checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import SourceError
from verl_npu.findings import Status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..comparison.comparison import STANDARDS, Comparison, content
from ..comparison.comparison import compare as compare_logs
from ..comparison.merged import Merged
from ..comparison.merged import compare as compare_merged
from ..comparison.page import describe_common, describe_side, draw, page
from ..comparison.standards import BASELINES, SOURCE, Baseline, Outcome, Verdict
from ..extras import need
from ..jobs.job import compose
from ..layers.report import draw as draw_layers
from ..layers.report import lines_of
from ..layers.running import compare_layers
from ..logs.metrics import mean, number
from ..logs.training import TrainingLog, read, spans
from ..places import put
from .options import command, html_option, refuse_ignored, unconfined_option, verl_option
from .script import asked_trainer, say_unconfined

_STATUS = {Outcome.WITHIN: Status.FINE, Outcome.OUTSIDE: Status.FOUND, Outcome.NOT_SHOWN: Status.NOT_JUDGED}
_STYLES = {Outcome.WITHIN: "green", Outcome.OUTSIDE: "red", Outcome.NOT_SHOWN: "yellow", Outcome.NO_LIMIT: ""}
_SHOWN = 10
"""The most differing tensors that are listed."""


@command(
    epilog=example(
        "verl-npu compare npu.log gpu.log",
        "verl-npu compare new.log old.log --standard regression --html report.html",
        "verl-npu compare npu.log --baseline a2-gspo-qwen3-8b-fsdp2",
        "verl-npu compare --merged models/step-100 checkpoints/global_step_100/actor",
        "verl-npu compare --layers run.sh",
    ),
)
@click.argument("npu_log", required=False, type=click.Path(path_type=Path))
@click.argument("reference_log", required=False, type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    metavar="NAME",
    help="Compare NPU_LOG with the published figures of this name. Use this option instead of REFERENCE_LOG. To list "
    "the names, use --list-baselines.",
)
@click.option("--list-baselines", is_flag=True, help="List the published figures for --baseline, and exit.")
@click.option(
    "--standard",
    "standards",
    multiple=True,
    type=click.Choice(STANDARDS),
    help="The standard that determines the verdict. You can repeat this option. [default: parity; with "
    "--baseline: regression]",
)
@click.option(
    "--merged",
    metavar="MODEL",
    type=click.Path(path_type=Path),
    help=(
        "Compare this merged model with the checkpoint that it was created from. Specify the checkpoint's "
        "folder instead of NPU_LOG."
    ),
)
@click.option(
    "--layers",
    "script",
    metavar="SCRIPT",
    type=click.Path(path_type=Path),
    help="Compare the trainer and the rollout engine of this launch script layer by layer.",
)
@verl_option
@unconfined_option
@click.option(
    "--architecture",
    default="",
    help="With --layers: the model's architecture, if compare cannot determine the architecture from the "
    "model's path.",
)
@json_option()
@click.option(
    "--png",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Save a plot to this PNG file. The plot shows the curves of both runs or, with --layers, the error "
    "of each layer.",
)
@html_option
def compare(
    npu_log: Path | None,
    reference_log: Path | None,
    baseline: str | None,
    list_baselines: bool,
    standards: tuple[str, ...],
    merged: Path | None,
    script: Path | None,
    verl: Path | None,
    unconfined: bool,
    architecture: str,
    as_json: bool,
    png: Path | None,
    html: Path | None,
) -> None:
    """Compare two training runs, two models, or a trainer with its engine.

    A log is a console log, the output of verl's file logger (JSON lines), or a folder of TensorBoard files. To read a
    log from standard input, write `-`. The command compares the steps that both logs contain. At least four common
    steps are required. The `parity` standard compares a run on NPUs with a run on GPUs: the mean error may be at most
    4 % for the reward and at most 2 % for the SFT loss. The `regression` standard compares a run on NPUs with an
    earlier run. It checks memory, throughput, step time, reward, and how far the rollout differs from the trainer. The
    command always shows the results of both standards. A criterion does not pass if its values are missing from the
    logs.

    --merged compares the output of `python -m verl.model_merger merge` with the shards of the FSDP, FSDP2, or Megatron
    checkpoint, bit for bit. The checkpoint is the folder that was passed to the merger as --local_dir.

    --layers answers a few prompts with the rollout engine of a launch script, and computes the same tokens with the
    trainer's model. Each operator of the engine and of the trainer is compared with transformers in float64 on the
    CPU, with the same inputs. The command names the first operator whose error is larger than rounding. If the command
    finds the cause of the error, it also names the cause. If the model's weights are not on this machine, the command
    uses a small random model of the same architecture.

    Exit status: 0 if all differences are within the limits, or if the merged model is identical to the checkpoint; 1
    if a difference is outside its limit, or if the merged model or an operator differs; 2 if the logs do not contain
    enough data, or if a log or a checkpoint cannot be read.
    """
    of_logs = ("baseline", "standards", "html")
    of_layers = ("verl", "unconfined", "architecture")
    if script is not None:
        refuse_ignored("--layers", *of_logs, "list_baselines", "merged", "npu_log", "reference_log")
        sys.exit(_compare_layers(script, verl, unconfined, architecture, as_json, png))
    refuse_ignored(_("a comparison without --layers"), *of_layers)
    if merged is not None:
        refuse_ignored("--merged", *of_logs, "png", "list_baselines")
        sys.exit(_compare_merged(merged, npu_log, reference_log, as_json))
    if list_baselines:
        refuse_ignored("--list-baselines", *of_logs, "png")
        _print_baselines(as_json)
        return
    npu, reference = _sides(npu_log, reference_log, baseline)
    if isinstance(reference, Baseline) and ("parity" in standards or png):
        raise SourceError(
            subject=f"--baseline {reference.name}",
            found=_("{option} requires the values of each step, which published figures do not include").format(
                option="--png" if "parity" not in standards else "--standard parity"
            ),
            fix=_("specify a reference log instead of --baseline, or remove the option"),
        )
    made = compare_logs(
        npu, reference, standards or (("regression",) if isinstance(reference, Baseline) else ("parity",))
    )
    written = _write(made, png, html)
    if as_json:
        click.echo(json.dumps(content(made), indent=2))
    else:
        _print(made)
        for path in written:
            terminal.line(_("written: {path}").format(path=path))
    sys.exit(_STATUS[made.outcome])


def _compare_layers(
    script: Path, verl: Path | None, unconfined: bool, architecture: str, as_json: bool, png: Path | None
) -> Status:
    if png:
        need("matplotlib", "--png")
    say_unconfined(unconfined)
    trainer, tree, _name = asked_trainer("compare --layers", script, (), verl, unconfined)
    job = compose(trainer, tree, unconfined)
    models = Path(tempfile.gettempdir(), f"verl-npu-models-{os.getuid()}")
    result = compare_layers(job.settings, models, architecture)
    if png:
        draw_layers(result, png)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print_layers(result)
    return Status.FOUND if result["first"] else Status.FINE


def _print_layers(result: Mapping[str, Any]) -> None:
    first = result["first"]
    if result["simulated"]:
        terminal.echo(_("SIMULATED: computed on virtual NPUs, which round like a CPU."))
    terminal.line(terminal.styled(_("different"), "red") if first else terminal.styled(_("as expected"), "green"))
    for line in lines_of(result):
        terminal.paragraph(line, indent="  ")
    sides = result["sides"]
    rows = [("", *sides)]
    for name in [each["name"] for each in sides["trainer"]["streams"]]:
        cells = []
        for side in sides.values():
            found = next((each for each in side["streams"] if each["name"] == name), None)
            cells.append(f"{found['error']:.1e} / {found['rounding']:.1e}" if found else "")
        rows.append((name, *cells))
    terminal.line(_("Error of the residual stream / error of rounding, before each norm:"))
    terminal.table(rows, [""] * len(rows), indent="  ")
    bad = [(side, each) for side in sides for each in sides[side]["operators"] if each["verdict"] != "as expected"]
    for side, each in bad[:_SHOWN]:
        flips = each["flips"] or {}
        more = (
            _(", {flipped} tokens with other experts, margin {margin:.1e}").format(**flips)
            if flips.get("flipped")
            else ""
        )
        text = _("  {side}, {operator}: {verdict}{more}")
        terminal.line(text.format(side=side, operator=each["operator"], verdict=each["verdict"], more=more))
    terminal.paragraph(
        _("Engine: {engine}. Trainer: {trainer}. Model: {model}.").format(
            engine=result["engine"], trainer=result["trainer"], model=result["model"]
        )
    )
    for each in result["not_shown"]:
        terminal.paragraph(each, label=_("not shown: "), indent="  ")


def _compare_merged(model: Path, checkpoint: Path | None, more: Path | None, as_json: bool) -> Status:
    if checkpoint is None or more is not None:
        raise SourceError(
            subject=f"--merged {model}",
            expected=_("one argument: the checkpoint that the merged model was created from"),
            found=_("no argument") if checkpoint is None else _("two arguments"),
            fix=_("see verl-npu compare --help"),
        )
    made = compare_merged(model, checkpoint)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made), indent=2))
    else:
        _print_merged(made)
    return Status.FOUND if made.differences else Status.FINE


def _print_merged(made: Merged) -> None:
    said = _("{tensors} tensors with {values} values equal those of the shards, bit for bit ({dtypes})")
    if made.differences:
        said = ngettext(
            "{count} of {tensors} tensors differs from the shards ({dtypes})",
            "{count} of {tensors} tensors differ from the shards ({dtypes})",
            len(made.differences),
        )
    dtypes = ", ".join(made.dtypes)
    if made.shard_dtypes != made.dtypes:
        dtypes += _(", to which verl rounds the shards' {dtypes}").format(dtypes=", ".join(made.shard_dtypes))
    terminal.line(
        terminal.styled(_("different"), "red") if made.differences else terminal.styled(_("same"), "green"),
        ": ",
        said.format(tensors=made.tensors, values=made.values, count=len(made.differences), dtypes=dtypes),
    )
    for name, why in list(made.differences.items())[:_SHOWN]:
        terminal.line(f"  {name}: ", why)
    if len(made.differences) > _SHOWN:
        terminal.line(_("  and {count} more, which --json lists").format(count=len(made.differences) - _SHOWN))
    for name in made.tied:
        terminal.line(_("  not saved separately, because it is tied to the input embedding: {name}").format(name=name))
    for old, new in list(made.renamed.items())[:1]:
        terminal.line(
            _("  {count} have a different name in the shards, for example {new} was {old}").format(
                count=len(made.renamed), new=new, old=old
            )
        )


def _sides(
    npu_log: Path | None, reference_log: Path | None, baseline: str | None
) -> tuple[TrainingLog, TrainingLog | Baseline]:
    if npu_log is None or (reference_log is None) == (baseline is None):
        raise SourceError(
            subject="verl-npu compare",
            expected=_("NPU_LOG, and either REFERENCE_LOG or --baseline NAME"),
            found=_("no log") if npu_log is None else _("both") if baseline else _("neither"),
            fix=_("see verl-npu compare --help"),
        )
    if reference_log is not None:
        return read(npu_log), read(reference_log)
    published = BASELINES.get(baseline or "")
    if published is None:
        raise SourceError(
            subject=f"--baseline {baseline}",
            expected=_("one of {baselines}").format(baselines=_(", ").join(BASELINES)),
            found=_("an unknown baseline"),
            fix=_("run verl-npu compare --list-baselines to see all baselines"),
        )
    return read(npu_log), published


def _write(made: Comparison, png: Path | None, html: Path | None) -> list[Path]:
    written = []
    for path, option in ((png, "--png"), (html, "--html")):
        if path is None:
            continue
        need("matplotlib", option)
        if option == "--html":
            need("jinja2", option)
        if not made.pairs and option == "--png":
            raise SourceError(
                subject=option,
                found=_("there is no step at which both logs contain the same metric"),
                fix=_("remove the option, or specify two logs that have some steps in common"),
            )
        try:
            if option == "--png":
                draw(made, path)
            else:
                # A path may hold bytes that are not valid text.
                put(path, page(made).encode(errors="backslashreplace"))
        except OSError as error:
            raise SourceError(
                subject=option, expected=_("a writable file"), found=str(error), fix=_("specify another path")
            ) from error
        written.append(path)
    return written


def _print(made: Comparison) -> None:
    _print_side(_("NPU log"), made.npu)
    if isinstance(made.reference, Baseline):
        terminal.line(
            _("reference: {reference}, {script} on {hardware}").format(
                reference=made.reference.name, script=made.reference.script, hardware=made.reference.hardware
            )
        )
        terminal.paragraph(_("from {source}").format(source=SOURCE), indent="  ", label="  ")
    else:
        _print_side(_("reference"), made.reference)
        terminal.paragraph(describe_common(made.common), indent="  ")
    for verdict in made.verdicts:
        terminal.echo()
        _print_verdict(verdict, verdict.name in made.judged_by)
    if made.pairs:
        terminal.echo()
        _print_pairs(made)
    terminal.echo()
    asked = [f"{verdict.name}, {verdict.shown}" for verdict in made.verdicts if verdict.name in made.judged_by]
    simulated = " SIMULATED" if made.simulated else ""
    terminal.line(
        terminal.styled(made.outcome.value, _STYLES[made.outcome]),
        _(": by the standard {asked}.{simulated}").format(asked=_("; ").join(asked), simulated=simulated),
    )


def _print_side(name: str, log: TrainingLog) -> None:
    terminal.line(describe_side(name, log))
    for note in log.notes():
        terminal.paragraph(note, label=_("  note: "), indent="    ")


def _print_verdict(verdict: Verdict, asked: bool) -> None:
    terminal.line(
        terminal.styled(_("{name}, {title}: ").format(name=verdict.name, title=verdict.title), "bold"),
        terminal.styled(verdict.outcome.value, _STYLES[verdict.outcome]),
        "" if asked else _(" (for information)"),
    )
    if not asked and all(judged.outcome is Outcome.NOT_SHOWN for judged in verdict.criteria):
        return
    rows: list[tuple[str, ...]] = [(_("criterion"), _("verdict"), "NPU", _("reference"), _("measured"), _("limit"))]
    for judged in verdict.criteria:
        tail = judged.why or judged.limit
        numbers = (number(judged.npu), number(judged.reference), number(judged.value, judged.unit))
        rows.append((judged.name, judged.outcome.value, *(each or "-" for each in numbers), tail))
    terminal.table(rows, ["", *(_STYLES[judged.outcome] for judged in verdict.criteria)], indent="  ")
    for formula in _formulas(verdict):
        terminal.paragraph(formula, indent="    ", label="  ")
    terminal.paragraph(_("from {source}").format(source=verdict.source), indent="    ", label="  ")


def _formulas(verdict: Verdict) -> Iterable[str]:
    for judged in verdict.criteria:
        if judged.value is not None:
            at = ngettext("step {steps}", "steps {steps}", len(judged.steps)).format(steps=spans(judged.steps))
            yield _("{name}: {formula}; {at}").format(name=judged.name, formula=judged.formula, at=at)


def _print_pairs(made: Comparison) -> None:
    rows: list[Sequence[str]] = [
        (_("metric"), _("steps"), "NPU", _("reference"), _("mean |NPU - reference|"), _("largest at step"))
    ]
    for pair in made.pairs:
        means = [number(mean([each[step] for step in pair.common])) for each in (pair.npu, pair.reference)]
        rows.append(
            (pair.metric.title, str(len(pair.common)), *means, number(pair.mean_difference), str(pair.largest))
        )
    terminal.table([tuple(row) for row in rows], [""] * len(rows), indent="  ")


def _print_baselines(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in BASELINES.values()], indent=2))
        return
    rows = [("baseline", "on", "memory", "step", "throughput", "reward", _("rollout against trainer"))]
    for each in BASELINES.values():
        rows.append(
            (
                each.name,
                each.hardware,
                f"{each.memory:.2f} GiB",
                f"{each.step_seconds:.2f} s",
                f"{each.throughput:.2f}",
                f"{each.reward:.4f}",
                f"{each.drift:.6f}",
            )
        )
    terminal.table(rows, [""] * len(rows))
    terminal.paragraph(
        _("From {source}. Throughput is in tokens per second and NPU. A row is valid only for its own script.").format(
            source=SOURCE
        )
    )
