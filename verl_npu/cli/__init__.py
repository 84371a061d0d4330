"""The command `verl-npu`."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NoReturn

import click

from .. import environment, language, progress
from ..damage import described, is_damage
from ..errors import CommandError, VerlNpuError
from ..findings import Status
from ..language import gettext as _
from ..language import translate
from ..reporting import clean
from ..version import __version__
from . import terminal, wording

COMMANDS = ("check", "env", "explain", "status")
"""The commands of this distribution. Each is in the module of the same name."""
WORKBENCH = (
    "compare",
    "doctor",
    "kernels",
    "launch",
    "lint",
    "plan",
    "prove",
    "rehearse",
    "setup",
    "watch",
)
"""The commands of the distribution verl-npu-workbench, which may not be installed."""
INSTALL = _("pip install 'verl-npu[workbench]', or in a clone: pip install ./packages/verl-npu-workbench")
"""The instruction for installing the workbench."""
GROUP = "verl_npu.commands"
"""The entry-point group that other distributions use to add commands. An entry point has the command's name and refers
to its click command."""

MOMENTS: Mapping[str, Mapping[str, str]] = {
    _("Before a run"): {
        "setup": "verl-npu setup --pin v0.7.1 --npu a3 --arch arm --output install",
        "doctor": "verl-npu doctor",
        "check": "verl-npu check",
        "lint": "verl-npu lint run.sh",
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
        "compare": "verl-npu compare npu.log gpu.log",
    },
    _("At any time"): {
        "explain": "verl-npu explain device",
        "env": "verl-npu env",
    },
}
"""The commands, grouped by the stage when a user needs them, each with an example."""
_LONGEST = 100
"""The longest word, in characters, that is compared with the names of commands."""
_LASTING = ("launch", "watch")
"""Commands that run until the user ends them. They show no progress."""


class _Commands(click.Group):
    """All commands. Each one is imported only when it is called. A user's mistake ends with one line and status 2,
    without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *_contributed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            found = self._found(cmd_name)
        except CommandError:
            # While the shell completes a line, a command that cannot be loaded is simply not offered.
            if ctx.resilient_parsing:
                return None
            raise
        return wording.translated(found) if isinstance(found, click.Command) else None

    def _found(self, name: str) -> object:
        """Return a command, or None if there is no command of that name. Raises CommandError if the command cannot be
        loaded."""
        if name in COMMANDS:
            with progress.step(name):
                return getattr(importlib.import_module(f".{name}", __name__), name)
        if name in (contributed := _contributed()):
            with progress.step(name):
                return _loaded(contributed[name])
        if name in WORKBENCH:
            raise CommandError(
                subject=f"verl-npu {name}",
                found=_("this command needs the distribution verl-npu-workbench, which is not installed here"),
                fix=INSTALL,
            )
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0][:_LONGEST], {*self.list_commands(ctx), *WORKBENCH}, n=1)
            if not near:
                raise
            said = _("No such command {name!r}. Did you mean {near!r}?").format(name=args[0], near=near[0])
            raise click.UsageError(said, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        there = self.list_commands(ctx)
        listed = {name for commands in MOMENTS.values() for name in commands}
        others = {name: f"verl-npu {name} --help" for name in there if name not in listed}
        for moment, commands in {**MOMENTS, _("Commands of other packages"): others}.items():
            rows: list[tuple[str, str]] = []
            for name, call in commands.items():
                if name in there:
                    rows += [(name, self._summary(ctx, name)), ("", call)]
            if rows:
                with formatter.section(translate(moment)):
                    formatter.write_dl(rows)
        lacking = [name for name in WORKBENCH if name not in there]
        if lacking:
            formatter.write_paragraph()
            formatter.write_text(
                translate(
                    _("pip install 'verl-npu[workbench]' adds {commands}.").format(commands=_(", ").join(lacking))
                )
            )

    def _summary(self, ctx: click.Context, name: str) -> str:
        try:
            command = self.get_command(ctx, name)
        except CommandError as error:
            return translate(_("cannot be loaded: {found}").format(found=error.found))
        return command.get_short_help_str(limit=200) if command else ""

    def main(self, *args: Any, **extra: Any) -> Any:
        wording.translate_click()
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
            # Python warns about odd escapes in upstream's source, but the user can do nothing about them.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return super().invoke(ctx)
            except VerlNpuError as error:
                terminal.fail(str(error))
                sys.exit(Status.NOT_JUDGED)
            except BrokenPipeError:
                raise
            except OSError as error:
                terminal.fail(str(_file_error(error, ctx.invoked_subcommand or "")))
                sys.exit(Status.NOT_JUDGED)
            except KeyboardInterrupt as error:
                _end(error)


def _contributed() -> dict[str, metadata.EntryPoint]:
    """Return the commands of other distributions. A command that has the name of one of verl-npu's own commands is
    omitted."""
    return {each.name: each for each in metadata.entry_points(group=GROUP) if each.name not in COMMANDS}


def _loaded(point: metadata.EntryPoint) -> object:
    """Return the command of an entry point. Raises CommandError if the command cannot be loaded for any reason."""
    try:
        return point.load()
    except Exception as error:
        owner = point.dist.name if point.dist is not None else point.value
        raise CommandError(
            subject=f"verl-npu {point.name}",
            expected=_("a loadable command in the distribution {owner}").format(owner=owner),
            found=f"{type(error).__name__}: {error}",
            fix=_("reinstall {owner}; the other commands still work").format(owner=owner),
        ) from error


def run() -> None:
    """Entry point of the `verl-npu` command."""
    terminal.ignore_broken_pipes()
    # Most objects of a command are syntax trees. They contain no cycles, and Python would visit them again and again.
    gc.set_threshold(100_000)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entries):
        # Programs that a command starts run in other folders. Python itself took these paths at its start.
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    try:
        main(prog_name="verl-npu")
    except Exception as error:
        # Python's own status for a traceback, 1, would mean that something was found.
        if is_damage(error):
            terminal.fail(described(error))
        else:
            traceback.print_exc()
        sys.exit(Status.NOT_JUDGED)
    finally:
        # Otherwise Python would visit all objects as it ends, which takes seconds on a busy machine.
        gc.freeze()


def _file_error(error: OSError, command: str) -> CommandError:
    return CommandError(
        subject=str(error.filename or f"verl-npu {command}"),
        found=error.strerror or str(error),
        fix=_("give another path, or free some disk space; the variable TMPDIR sets the folder for temporary files")
        if os.path.exists(__file__)
        else _("install verl-npu with pip, because it cannot run from inside a zip file"),
    )


def _end(error: KeyboardInterrupt) -> NoReturn:
    terminal.fail(_("ended by {signal}").format(signal=error.args[0] if error.args else "Ctrl-C"))
    # A command that ended cleanly reports the signal that ended it.
    sys.exit(getattr(error, "status", 128 + signal.SIGINT))


@contextmanager
def _cleaned() -> Iterator[None]:
    # click repeats the faulty part of the command line in its error.
    try:
        yield
    except click.UsageError as error:
        message = error.format_message()
        # For a missing choice, click lists each possibility after a tab.
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
    """Run unmodified verl on Ascend NPUs, and check the patches that make this work.

    Installing the package is enough to patch verl. `check`, `status`, and `explain` show the patches, and `env` lists
    the environment variables. The other commands help before, during, and after a run. Each command has its own
    --help.

    Exit status of all commands: 0 if there is no problem, except for warnings; 1 if the command found a problem; 2 if
    the arguments are invalid, or if the command cannot reach a result; 130 after Ctrl-C. `launch` returns the exit
    status of its job.
    """
    command = ctx.invoked_subcommand or ""
    if command not in _LASTING:
        ctx.with_resource(progress.step(command))
