"""`verl-npu prove`: an acceptance test of this machine's NPUs that reports verdicts and bundles the results."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import click

from verl_npu.ascend import software
from verl_npu.ascend.variables import virtual_npus
from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import CommandError
from verl_npu.findings import Status
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..extras import need
from ..prove import bundle, corpus
from ..prove.bundle import Proof
from ..prove.content import to_json
from ..prove.folder import Asked, Folder, put
from ..prove.page import page
from ..prove.result import StageResult, Verdict
from ..prove.running import chosen, run
from ..prove.table import STAGES
from ..secrecy.redaction import Redaction
from .options import command, html_option, output_option

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.NOT_POSSIBLE: "yellow"}
_STATUS = {
    Verdict.PASSED: Status.FINE,
    Verdict.FAILED: Status.FOUND,
    Verdict.NOT_POSSIBLE: Status.NOT_JUDGED,
}
_PACKAGES = (
    *("verl-npu", "virtual-ascend", "verl", "torch", "torch_npu", "transformers", "vllm", "vllm-ascend"),
    *("mindspeed", "megatron-core", "ray", "tensordict", "triton-ascend", "numpy"),
)


@command(
    epilog=example(
        "verl-npu prove",
        "verl-npu prove --minutes 60 --npus 8",
        "verl-npu prove --minutes 60 --stage training --recipe run.sh",
        "verl-npu prove --stage training --recipe run.sh trainer.n_gpus_per_node=8",
        "verl-npu prove --resume",
        "verl-npu prove --show proof-2026-01-31.zip",
        "verl-npu prove --show after.zip --against before.zip",
    )
)
@click.argument("arguments", nargs=-1)
@click.option(
    "--minutes",
    type=click.FloatRange(1, 600),
    default=10.0,
    show_default=True,
    help="The time limit for all stages together, in minutes.",
)
@click.option(
    "--stage",
    "names",
    metavar="STAGE",
    multiple=True,
    type=click.Choice([stage.name for stage in STAGES]),
    help="Run only this stage. You can repeat this option. With --resume, the stage runs again even if it is "
    "complete.",
)
@click.option("--npus", type=click.IntRange(1), help="The number of NPUs to use [default: all].")
@click.option(
    "--recipe",
    metavar="SCRIPT",
    type=click.Path(path_type=Path),
    help="In the `training` stage, run `verl-npu plan` on this launch script, and then run the script for three "
    "training steps. ARGUMENTS are passed to the script.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the unfinished proof in the output folder. Completed stages are not run again.",
)
@output_option("outputs/prove")
@click.option(
    "--show",
    metavar="BUNDLE",
    type=click.Path(path_type=Path),
    help="Show the content of this bundle, and run nothing.",
)
@click.option(
    "--against", metavar="BUNDLE", type=click.Path(path_type=Path), help="Compare the proof with this earlier bundle."
)
@html_option
@json_option()
def prove(
    arguments: tuple[str, ...],
    minutes: float,
    names: tuple[str, ...],
    npus: int | None,
    recipe: Path | None,
    resume: bool,
    output: Path,
    show: Path | None,
    against: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Check whether NPUs can train, and record the results.

    The stages run from cheapest to most expensive, each in a separate process with a time limit. A stage passes,
    fails, or is not possible on this machine. If a stage fails, the command reports the cause and the consequences for
    training, and continues with the other stages. On virtual NPUs (VIRTUAL_ASCEND=2), all results are SIMULATED.

    The command writes the bundle proof-DATE.zip into the output folder. You can send the bundle to others: user names,
    host names, addresses, and paths have been removed.

    Exit status: 0 if nothing failed; 1 if a stage failed, or if the bundles of --show and --against differ; 2 if no
    stage was possible on this machine, or if a bundle cannot be created or read.
    """
    if arguments and recipe is None:
        raise click.UsageError(
            _(
                "{arguments}: arguments are passed only to the script that --recipe names. Add --recipe SCRIPT, or "
                "choose a stage with --stage {stage}"
            ).format(arguments=" ".join(arguments), stage=_meant(arguments[0]))
        )
    if html is not None:
        need("jinja2", "--html")
    if show is not None:
        proof = bundle.read(show)
    else:
        proof = _made(minutes, names, npus or 0, _script(recipe, arguments), resume, output.resolve(), as_json)
    if html is not None:
        put(html.resolve(), page(bundle.redacted(proof, Redaction.here())).encode("utf-8", "backslashreplace"))
    if against is not None:
        sys.exit(_compare(bundle.read(against), proof, as_json))
    if as_json:
        click.echo(json.dumps(proof.as_json(), indent=2))
    elif show is not None:
        _print(proof)
    sys.exit(_STATUS[proof.verdict])


def _meant(word: str) -> str:
    """Return the word if it is a stage's name, otherwise the placeholder STAGE."""
    return word if word in {stage.name for stage in STAGES} else "STAGE"


def _script(recipe: Path | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a launch script's path and its arguments. Raises CommandError if the script does not exist."""
    if recipe is None:
        return ()
    if not recipe.is_file():
        raise CommandError(
            subject=f"--recipe {recipe}",
            found=_("the launch script does not exist"),
            fix=_("specify the path of the script that starts your training job"),
        )
    return (str(recipe.resolve()), *arguments)


def _made(
    minutes: float,
    names: tuple[str, ...],
    npus: int,
    recipe: Sequence[str],
    resume: bool,
    output: Path,
    as_json: bool,
) -> Proof:
    """Start or continue a proof, and write its bundle. Raises AscendSoftwareError if there is neither torch_npu nor
    virtual NPUs."""
    if not virtual_npus() and importlib.util.find_spec("torch_npu") is None:
        raise software.absent()
    folder = Folder(output)
    stages = chosen(names)
    asked = Asked(
        made=time.strftime("%Y-%m-%d"), minutes=minutes, npus=npus, simulated=virtual_npus(), versions=_versions()
    )
    if resume:
        asked = _same(folder.asked(), asked)
        ended = folder.results()
        for name in ended if names else ():
            if name in names:
                folder.forget(name)
        stages = tuple(stage for stage in stages if names or stage.name not in ended)
    else:
        folder.begin(asked)
    told = (lambda result: None) if as_json else _print_stage
    run(folder, stages, minutes, npus or asked.npus, told, recipe)
    proof = bundle.collect(folder)
    redact = Redaction.here()
    shown = bundle.redacted(proof, redact)
    if not as_json:
        terminal.paragraph(
            _(
                "The bundle has {count} checks and the results of the operators. Masked in its texts: "
                "{masked}. Addresses, names, and folders were removed, too. Read the file proof.json in the "
                "bundle before you send the bundle."
            ).format(count=sum(len(stage.checks) for stage in shown.stages), masked=redact.said())
        )
    path = bundle.write(folder, shown)
    if not as_json:
        _print_end(proof, path)
    return proof


def _same(earlier: Asked, asked: Asked) -> Asked:
    """Return the request of the earlier proof, in order to continue it. Raises CommandError if the environment has
    changed since that proof."""
    if (earlier.versions, earlier.simulated) != (asked.versions, asked.simulated):
        changed = [name for name in asked.versions if asked.versions[name] != earlier.versions.get(name)]
        raise CommandError(
            subject="--resume",
            expected=_("the environment that the proof was started in"),
            found=_("a different {names}").format(names=_(", ").join(changed))
            if changed
            else _("a different number of virtual NPUs"),
            fix=_("start a new proof in another folder, and compare the two proofs with --show NEW --against OLD"),
        )
    return earlier


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _print_stage(result: StageResult) -> None:
    counts = {each: sum(check.verdict is each for check in result.checks) for each in Verdict}
    waited = result.waited >= 1
    shown = _(", ").join(
        [
            _("{seconds:.0f} s").format(seconds=result.seconds),
            *([_("{seconds:.0f} s of them waiting for a processor").format(seconds=result.waited)] if waited else []),
            *(f"{count} {each.value}" for each, count in counts.items() if count),
        ]
    )
    verdict = terminal.styled(result.verdict.value, _STYLES[result.verdict])
    terminal.line(terminal.styled(f"{result.name:<12}", "bold"), verdict, "  ", shown)
    if result.verdict is not Verdict.PASSED:
        terminal.paragraph(result.cause, label="  ", indent="  ")
    if result.meaning:
        terminal.paragraph(_("for a training run: {meaning}").format(meaning=result.meaning), indent="  ")


def _print_end(proof: Proof, path: Path) -> None:
    _print_verdict(proof)
    terminal.line(_("bundle: {path}").format(path=path))


def _print_verdict(proof: Proof) -> None:
    stages = ngettext("{count} stage", "{count} stages", len(proof.stages)).format(count=len(proof.stages))
    observations = ngettext("{count} observation", "{count} observations", len(proof.corpus))
    said = _(", of {stages}, with {observations}").format(
        stages=stages, observations=observations.format(count=len(proof.corpus))
    )
    simulated = f". SIMULATED: {proof.simulated}" if proof.simulated else ""
    terminal.line(terminal.styled(proof.verdict.value, _STYLES[proof.verdict]), said, simulated)


def _print(proof: Proof) -> None:
    terminal.line(
        _("{device}, made {day} with verl-npu {version}").format(
            device=proof.notes.get("device", _("no NPU")), day=proof.asked.made, version=proof.made_by
        )
    )
    terminal.paragraph(_(", ").join(f"{name} {version}" for name, version in proof.asked.versions.items()))
    terminal.echo()
    for stage in proof.stages:
        _print_stage(stage)
    terminal.echo()
    _print_verdict(proof)


def _compare(old: Proof, new: Proof, as_json: bool) -> Status:
    """Print the differences between two proofs. The returned status shows whether there are any differences."""
    lines = list(bundle.differences(old, new))
    others = list(corpus.compared(old.corpus, new.corpus))
    both = corpus.in_both(old.corpus, new.corpus)
    if as_json:
        content = {"differences": lines, "observations": [to_json(each) for each in others], "compared": both}
        click.echo(json.dumps(content, indent=2))
    else:
        for line in lines or [_("every check has the same result")]:
            terminal.paragraph(line, indent="  ")
        terminal.line(_("{both} observations are in both, {count} differ").format(both=both, count=len(others)))
        for each in others:
            terminal.paragraph(str(each), indent="    ", label="  ")
    return Status.FOUND if lines or others else Status.FINE
