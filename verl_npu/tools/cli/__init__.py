"""The command `verl-npu`."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    def main(self, *args: Any, **extra: Any) -> Any:
        wording.speak_for_click()
        with _language_of_the_user():
            return super().main(*args, **extra)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else wording.translated(found)

    def get_help(self, ctx: click.Context) -> str:
        return wording.help_of(self, ctx)

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
                terminal.fail(_("ended by {signal}").format(signal=error.args[0] if error.args else "Ctrl-C"))
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
        message = error.format_message()
        # Of a choice that is missing, click puts each possibility after a tab.
        cleaned = "\n".join(clean(line.expandtabs(2)) for line in translate(message).splitlines())
        if cleaned == message:
            raise
        raise click.UsageError(cleaned, error.ctx) from None


@contextmanager
def _language_of_the_user() -> Iterator[None]:
    """Speak the language that is asked for, if standard output can show it."""
    chosen = language.chosen(environment.LANGUAGE.text(), os.environ)
    try:
        "中文".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        chosen = language.ENGLISH
    with language.speaking(chosen):
        yield


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
