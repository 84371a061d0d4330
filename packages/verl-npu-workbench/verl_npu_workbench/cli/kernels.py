"""`verl-npu kernels`: compiles Triton kernels for NPUs on a machine without NPUs."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import Command, example, json_option
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..kernels import fitting, judging, report, targets, toolchain
from ..kernels import launches as of_launches
from ..kernels.toolchain import PAIRS, Soc
from ..kernels.verdict import NOT_SHOWN, Judged, Origin, Verdict, counts
from .options import command, unconfined_option
from .script import say_unconfined

_STYLES = {
    Verdict.COMPILES: "green",
    Verdict.OVERFLOWS: "red",
    Verdict.MAY_OVERFLOW: "yellow",
    Verdict.REFUSED: "red",
    Verdict.CRASHED: "red",
    Verdict.HANGS: "red",
    Verdict.NOT_JUDGED: "yellow",
}
_MOST_FITS = 40
_COMMAND = "verl_npu.command"


def soc_option(help: str) -> Callable[[Command], Command]:
    """Return a click decorator for the option `--soc`."""
    names = [each.value for each in Soc]
    return click.option("--soc", type=click.Choice(names), default=Soc.A2.value, show_default=True, help=help)


class _CommandWithProgram(click.Command):
    """A click command whose arguments may contain another program's command line after `--`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            context.meta[_COMMAND] = tuple(args[args.index("--") + 1 :])
            args = args[: args.index("--")]
        return super().parse_args(context, args)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- COMMAND]"]


_BACKS = tuple(dict.fromkeys(f"{pair.front},{pair.back}" for pair in PAIRS))


@command(
    cls=_CommandWithProgram,
    epilog=example(
        "verl-npu kernels verl.utils.kernel.kernels",
        "verl-npu kernels --soc A3 my_kernels.py",
        "verl-npu kernels --only 'add_*' vllm_ascend-0.11.0-py3-none-any.whl",
        "verl-npu kernels -- python test_my_kernels.py",
    ),
)
@click.argument("target", required=False)
@click.option(
    "--launches",
    type=click.Path(path_type=Path),
    help="Check the kernel launches that are recorded in this file, instead of the kernels of TARGET.",
)
@soc_option("The NPU type to compile the kernels for.")
@click.option(
    "--only",
    metavar="PATTERN",
    multiple=True,
    help="Check only the kernels with this name. The name can contain the shell wildcards * and ?.",
)
@click.option("--compiler", type=click.Choice(_BACKS), default=_BACKS[0], show_default=True,
              help="The releases of triton-ascend and ascendnpu-ir to compile with.")  # fmt: skip
@click.option(
    "--python",
    metavar="PATH",
    default="",
    help="The path of the Python 3.10 or 3.11 interpreter that runs triton-ascend.",
)
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Install the compiler from the wheels in this folder instead of downloading the wheels. Use this option on a "
    "machine without network access.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="The time limit for each kernel, in seconds.",
)
@click.option(
    "--configs",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="The largest number of configurations to try for each kernel.",
)
@click.option(
    "--fit",
    is_flag=True,
    help="For each kernel that overflows the on-chip memory, search for smaller block sizes, with up to 40 tries.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="The number of kernels to compile in parallel.",
)
@click.option(
    "--fresh", is_flag=True, help="Compile all kernels again, even those with a verdict from an earlier run."
)
@unconfined_option
@json_option()
@click.pass_context
def kernels(
    context: click.Context,
    target: str | None,
    launches: Path | None,
    soc: str,
    only: tuple[str, ...],
    compiler: str,
    python: str,
    wheels: Path | None,
    timeout: float,
    configs: int,
    fit: bool,
    jobs: int,
    fresh: bool,
    unconfined: bool,
    as_json: bool,
) -> None:
    """Check whether Ascend's compiler accepts Triton kernels.

    The command needs no NPU and no CANN. TARGET is an installed module or package, a Python file, a folder, or a
    wheel. The command neither imports nor installs TARGET. On first use, pip downloads the compiler (triton-ascend and
    ascendnpu-ir) into a separate folder, away from your packages. Each kernel is compiled in a separate process, in a
    sandbox. The command guesses a kernel's arguments from the kernel's source.

    With --fit, the command tries smaller block sizes for each kernel that overflows the NPU's on-chip memory. The
    search starts close to the author's block sizes and halves them step by step.

    With COMMAND, `verl-npu kernels` runs that program on virtual NPUs, and checks each of its kernel launches with the
    real arguments. With --launches, `verl-npu kernels` checks launches that a program recorded earlier. To record
    launches, run the program with VIRTUAL_ASCEND=1, and set VERL_NPU_KERNEL_LAUNCHES to the path of the file to write.

    If a kernel overflows with guessed arguments, its verdict is *may overflow*, which is only a warning.

    Exit status: 0 if no kernel fails; 1 if at least one kernel fails; 2 if nothing could be checked.
    """
    command: tuple[str, ...] = context.meta.get(_COMMAND, ())
    if sum(map(bool, (target, launches, command))) != 1:
        raise click.UsageError(_("specify exactly one of TARGET, --launches FILE, or -- COMMAND"))
    say_unconfined(unconfined)
    front, _unused, back = compiler.partition(",")
    pair = next(each for each in PAIRS if (each.front, each.back) == (front, back))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as scratch:
        found = targets.find(target, Path(scratch)) if target else None
        request = judging.Request(
            toolchain=toolchain.prepare(pair, python, wheels),
            soc=Soc(soc),
            seconds=timeout,
            configurations=configs,
            at_once=jobs,
            fit=_MOST_FITS if fit else 0,
            unconfined=unconfined,
            fresh=fresh,
        )
        if found:
            read = judging.read(found, request)
            unread, root = read.unread, found.root
            judged = judging.judge(found, judging.chosen(read.kernels, only), request)
            judged = fitting.fit(found, judged, request) if fit else judged
        else:
            file = launches or _launched(command, request.toolchain, Path(scratch, "launches.jsonl"))
            root = Path.cwd()
            judged, unread = of_launches.judge(judging.chosen(of_launches.read(file), only), request)
    result = report.Report(
        judged=tuple(judged), unread=unread, root=root, request=request, seconds=time.monotonic() - began
    )
    if as_json:
        click.echo(json.dumps(report.content(result), indent=2))
    else:
        show(result)
    sys.exit(report.status(result))


def _launched(command: Sequence[str], chain: toolchain.Toolchain, file: Path) -> Path:
    status = of_launches.run(command, chain, file)
    if status:
        terminal.note(
            _("the program ended with status {status}; its launches before the end are judged").format(status=status)
        )
    file.touch()
    return file


def show(result: report.Report) -> None:
    """Print the verdict on each kernel, the number of kernels with each verdict, and a note about what the verdicts do
    not cover."""
    of = result.request
    terminal.echo(
        _("{soc}, {compiler}; SIMULATED: no NPU and no CANN").format(soc=of.soc.value, compiler=of.toolchain.id)
    )
    terminal.echo()
    by_module: dict[str, list[Judged]] = {}
    for each in result.judged:
        by_module.setdefault(each.kernel.module, []).append(each)
    for module, inside in by_module.items():
        terminal.line(terminal.styled(module, "bold"))
        for each in inside:
            _show_kernel(each, result.root)
    if by_module:
        terminal.echo()
    for file, why in result.unread.items():
        named = report.shown(file, result.root)
        terminal.paragraph(_("not read: {file}: {why}").format(file=named, why=why), indent="  ")
    _show_counts(result)


def _show_kernel(each: Judged, root: Path) -> None:
    best, arguments = each.best, each.arguments
    verdict = terminal.styled(f"{best.verdict.value:<12}", _STYLES[best.verdict])
    origin = f" ({arguments.origin.value})" if arguments is not None else ""
    terminal.line("  ", verdict, "  ", each.kernel.name, terminal.styled(origin, "dim"))
    details = [report.said(best, root)]
    if arguments is not None and arguments.origin is Origin.CAPTURED:
        details.append(report.launched(arguments))
    if arguments is not None and arguments.label and best.verdict is not Verdict.NOT_JUDGED:
        details.append(_("with {configuration}").format(configuration=arguments.label))
        if len(each.kernel.cases) > 1:
            tried = _("{tried} of {all} configurations tried")
            details.append(tried.format(tried=len(each.tried), all=len(each.kernel.cases)))
    terminal.paragraph(_(", ").join(filter(None, details)), indent=" " * 16)
    if each.searched:
        terminal.paragraph(report.fitted(each), indent=" " * 16)


def _show_counts(result: report.Report) -> None:
    found = [f"{count} {verdict.value}" for verdict, count in counts(result.judged).items() if count]
    number, seconds = len(result.judged), round(result.seconds)
    text = ngettext("{n} kernel in {seconds} s: {verdicts}", "{n} kernels in {seconds} s: {verdicts}", number)
    terminal.echo(text.format(n=number, seconds=seconds, verdicts=_(", ").join(found) or _("none")))
    kept = sum(each.best.cached for each in result.judged)
    if kept:
        terminal.paragraph(_("{count} of these verdicts are from an earlier run.").format(count=kept), indent="  ")
    if any(each.best.verdict is Verdict.MAY_OVERFLOW for each in result.judged):
        terminal.paragraph(
            _(
                "*May overflow* means that a kernel overflows with guessed arguments; the exit status does "
                "not change. `verl-npu kernels -- COMMAND` judges the real launches of a program."
            ),
            label=_("warning: "),
            indent="  ",
        )
    if _has(result.judged, Origin.GUESSED):
        terminal.paragraph(
            _(
                "Guessed arguments come from the kernel's source. With the arguments of a real launch, the figures "
                "and the verdict may differ."
            ),
            indent="  ",
        )
    not_shown = _("; ").join(NOT_SHOWN)
    terminal.paragraph(_("That a kernel compiles here does not show {what}.").format(what=not_shown), indent="  ")
    terminal.paragraph(report.stands_for(result.request.toolchain.pair), indent="  ")


def _has(judged: Sequence[Judged], origin: Origin) -> bool:
    return any(arguments.origin is origin for each in judged for arguments, _unused in each.tried)
