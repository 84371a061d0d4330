"""The command `verl-npu`."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from ... import environment, language
from ...errors import VerlNpuError
from ...language import gettext as _
from ...language import translate
from ...reporting import clean
from ...version import __version__
from .. import progress
from ..processes import Signalled, ended_whole
from . import terminal, wording

__all__ = ["MOMENTS", "main", "run"]

MOMENTS: Mapping[str, Mapping[str, str]] = {
    _("Before a run"): {
        "env": "verl-npu env --pin v0.7.1 --npu a3 --arch arm --output install",
        "container": "verl-npu container --pin v0.9.1 --server a3 --format docker-run",
        "doctor": "verl-npu doctor",
        "check": "verl-npu check --script run.sh",
        "mindspeed": "verl-npu mindspeed --pin v0.8.0 --check run.sh",
        "kernels": "verl-npu kernels verl.utils.kernel.kernels",
        "plan": "verl-npu plan examples/grpo_trainer/run_qwen3-8b_npu.sh",
        "rehearse": "verl-npu rehearse examples/grpo_trainer/run_qwen2_5_7b_grpo_npu.sh",
        "prove": "verl-npu prove",
    },
    _("During a run"): {
        "launch": "verl-npu launch --nodes 4 --head node1 -- bash run.sh",
        "watch": "verl-npu watch train.log",
        "status": "verl-npu status outputs/manifests",
    },
    _("After a run"): {
        "doctor": "verl-npu doctor --log train.log",
        "report": "verl-npu report train.log",
        "compare": "verl-npu compare npu.log gpu.log",
        "merge": "verl-npu merge checkpoints",
        "serve": "verl-npu serve models/step-100",
        "evaluate": "verl-npu evaluate test.parquet --rounds 16 --output before",
    },
    _("At any time"): {
        "explain": "verl-npu explain npu-memory",
    },
}
"""The commands by the moment at which one needs them, each with one example."""
_UNTIL_ENDED = ("launch", "serve", "watch")
"""Commands that are there until someone ends them: that they go on is not worth a line."""


class _Commands(click.Group):
    """The commands, each imported when it is called; a user's mistake ends with one line and status 2, never with a
    traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({name for commands in MOMENTS.values() for name in commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        with progress.step(cmd_name):
            module = importlib.import_module(f".{cmd_name}", __name__)
        found = getattr(module, cmd_name)
        return wording.translated(found) if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for moment, commands in MOMENTS.items():
            with formatter.section(translate(moment)):
                rows: list[tuple[str, str]] = []
                for name, call in commands.items():
                    command = self.get_command(ctx, name)
                    summary = command.get_short_help_str(limit=200) if command else ""
                    rows += [(name, summary), ("", call)]
                formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:
        wording.speak_for_click()
        with language.speaking_to_the_user(environment.LANGUAGE.text()):
            return super().main(*args, **extra)

    def get_help(self, ctx: click.Context) -> str:
        return wording.help_of(self, ctx)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        with _cleaned(), progress.shown():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with warnings.catch_warnings(), _cleaned(), progress.shown():
            # Python warns of odd escapes in upstream's source; nobody who runs this can do anything about those.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return super().invoke(ctx)
            except VerlNpuError as error:
                terminal.fail(str(error))
                sys.exit(2)
            except KeyboardInterrupt as error:
                _end(error)


def run() -> None:
    """Run the command as a program: a signal ends it with all that it has started."""
    try:
        with ended_whole():
            main(prog_name="verl-npu")
    except Signalled as error:
        with language.speaking_to_the_user(environment.LANGUAGE.text()):
            _end(error)
    finally:
        # Python would go through all objects as it ends, for seconds after the answer on a busy machine.
        gc.freeze()


def _end(error: KeyboardInterrupt) -> NoReturn:
    terminal.fail(_("ended by {signal}").format(signal=error.args[0] if error.args else "Ctrl-C"))
    sys.exit(error.status if isinstance(error, Signalled) else 128 + signal.SIGINT)


@contextmanager
def _cleaned() -> Iterator[None]:
    # click repeats in its error what is wrong on the command line.
    try:
        yield
    except click.UsageError as error:
        message = error.format_message()
        # Of a choice that is missing, click puts each possibility after a tab.
        cleaned = "\n".join(clean(line.expandtabs(2)) for line in translate(message).splitlines())
        if cleaned == message:
            raise
        raise click.UsageError(cleaned, error.ctx) from None


_EPILOG = """\b
Completion by the Tab key (for zsh: zsh_source, for fish: fish_source):
  eval "$(_VERL_NPU_COMPLETE=bash_source verl-npu)"  # in ~/.bashrc"""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(__version__, prog_name="verl-npu")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run unmodified verl on Ascend NPUs: see what is patched, and whether it fits.

    Installing the package is enough to patch verl: no command does that. They look at environments, scripts and logs,
    start jobs over several machines, and take care of what a job leaves. Each has a --help of its own, and `env` lists
    the environment variables.
    """
    command = ctx.invoked_subcommand or ""
    if command not in _UNTIL_ENDED:
        ctx.with_resource(progress.step(command))
