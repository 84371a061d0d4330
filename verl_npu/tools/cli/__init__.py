"""The command `verl-npu`."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ...errors import VerlNpuError
from ...reporting import clean
from ...version import __version__
from .. import progress
from ..processes import Signalled, ended_whole
from . import terminal
from .check import check
from .compare import compare_logs
from .container import container
from .doctor import doctor
from .drift import drift
from .env import env
from .evaluate import evaluate
from .explain import explain
from .launch import launch
from .lock import lock
from .merge import merge
from .mindspeed import mindspeed
from .options import HOW, example
from .plan import plan
from .rehearse import rehearse
from .serve import serve
from .status import status
from .watch import watch

__all__ = ["main", "run"]


class _Commands(click.Group):
    """A user's mistake ends with one line and status 2, never with a traceback."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        with _cleaned():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with warnings.catch_warnings(), _cleaned():
            # Python warns of odd escapes in upstream's source; nobody who runs this can do anything about those.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return super().invoke(ctx)
            except VerlNpuError as error:
                terminal.fail(str(error))
                sys.exit(2)
            except KeyboardInterrupt as error:
                terminal.fail(f"ended by {error.args[0] if error.args else 'Ctrl-C'}")
                sys.exit(error.status if isinstance(error, Signalled) else 128 + signal.SIGINT)


def run() -> None:
    """Run the command as a program: a signal ends it with all that it has started."""
    with ended_whole():
        main(prog_name="verl-npu")


@contextmanager
def _cleaned() -> Iterator[None]:
    # click repeats in its error what is wrong on the command line.
    try:
        yield
    except click.UsageError as error:
        said = error.format_message()
        # Of a choice that is missing, click puts each possibility after a tab.
        cleaned = "\n".join(clean(line.expandtabs(2)) for line in said.splitlines())
        if cleaned == said:
            raise
        raise click.UsageError(cleaned, error.ctx) from None


_UNTIL_ENDED = ("launch", "serve", "watch")
"""Commands that are there until someone ends them: that they go on is not worth a line."""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=HOW + "\n\n" + example("verl-npu check", "verl-npu explain device", "verl-npu status outputs/manifests"),
)
@click.version_option(__version__, prog_name="verl-npu")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run unmodified verl on Ascend NPUs: see what is patched, and whether it fits.

    Installing the package is enough to patch verl: no command does that. They look at environments, scripts and logs,
    start jobs over several machines, and take care of what a job leaves. Each has a --help of its own, and `env` lists
    the environment variables.
    """
    ctx.with_resource(progress.shown())
    command = ctx.invoked_subcommand or ""
    if command not in _UNTIL_ENDED:
        ctx.with_resource(progress.step(command))


for command in (
    check,
    compare_logs,
    container,
    doctor,
    drift,
    env,
    evaluate,
    explain,
    launch,
    lock,
    merge,
    mindspeed,
    plan,
    rehearse,
    serve,
    status,
    watch,
):
    main.add_command(command)
