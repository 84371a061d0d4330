"""`verl-npu watch`: shows a training run, and any anomalies in it, in the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import SourceError
from verl_npu.findings import Status
from verl_npu.language import gettext as _
from verl_npu.language import translate
from verl_npu.reporting import clean

from ..ending import Standing, ending_of, quiet_of
from ..extras import need
from ..logs.files import STDIN
from ..logs.metrics import DROPPED, LOSS, REWARD, STALENESS, number
from ..logs.training import Follower, follow, whole
from ..watch import State, content, state_of
from .options import command

_SCREEN_PACKAGES = ("rich", "plotext")


@command(epilog=example("verl-npu watch train.log", "verl-npu watch train.log --once --json"))
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show the current state of the log, and exit.")
@json_option("Print the state as JSON. Without --once, print one line of JSON for each new state.")
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(0.05),
    default=2.0,
    show_default=True,
    help="How often to reread the log, in seconds.",
)
def watch(log: Path, once: bool, as_json: bool, every: float) -> None:
    """Follow the log of a training run in progress.

    LOG is a console log, the output of verl's file logger (JSON lines), or a folder of TensorBoard files. To read the
    log from standard input, write `-`. If LOG does not exist yet, the command waits for it. The screen shows curves,
    the time of each phase of a step, tokens per second, the remaining time, and whether the training failed or stopped
    without finishing. The screen also reports anomalies: NaN, an entropy collapse, a jump in the gradient norm, a step
    that takes twice the usual time, a rollout that gets slower or drifts from the trainer, responses that are cut off
    at the length limit, and host memory that keeps growing. If the rollout has its own NPUs, the screen shows whether
    the trainer or the rollout is waiting for the other. If you pipe the output, the command prints one line for each
    step until the training ends or the reader closes the pipe. Ctrl-C ends the command.

    Exit status: 0 if there is no anomaly; 1 if there is an anomaly, or if the training failed or stopped without
    finishing; 2 if the log cannot be read; 130 after Ctrl-C.
    """
    if once:
        sys.exit(_once(log, as_json))
    screen = _is_screen() and not as_json
    if screen:
        _need_screen_packages()
    follower = _waited_for(log, every)
    if screen:
        _on_a_screen(follower, every)
    else:
        sys.exit(_as_lines(follower, every, as_json))


def _once(log: Path, as_json: bool) -> Status:
    follower = follow(log)
    found = whole(follower)
    state = state_of(found, ending_of(follower, found))
    if state is None:
        return Status.NOT_JUDGED
    if as_json:
        click.echo(json.dumps(content(state), indent=2))
    else:
        if sys.stdout.isatty():
            _need_screen_packages()
        _print_once(state)
    return Status.FINE if state.calm else Status.FOUND


def _need_screen_packages() -> None:
    for package in _SCREEN_PACKAGES:
        need(package, "verl-npu watch on a terminal")


def _print_once(state: State) -> None:
    if _is_unicode() and all(map(find_spec, _SCREEN_PACKAGES)):
        from rich.console import Console

        from .screen import render

        console = Console(width=terminal.width(), highlight=False)
        console.print(render(state, console))
    else:
        for line in _summary(state):
            terminal.echo(line)


def _waited_for(log: Path, every: float) -> Follower:
    if log != STDIN and not log.exists():
        waiting = _("waiting for {log}").format(log=log)
        click.echo(clean(translate(waiting)), err=True)
        with progress.step(waiting):
            while not log.exists():
                time.sleep(every)
    return follow(log)


_QUIET = 30.0
"""The seconds without a new line after which the state of the training is checked, again and again."""


def _states(follower: Follower, every: float) -> Iterator[State | None]:
    """Yield the state of the training run whenever the state is new, and None after each poll of the log that found
    nothing new. Stop when the log can no longer grow."""
    began, read, heard = time.monotonic(), False, 0.0
    # If nothing has been written to the log for a long time, report at once how the training ended.
    asks = began if quiet_of(follower) > _QUIET else began + _QUIET
    standing: Standing | None = None
    while True:
        try:
            news = follower.poll()
        except SourceError:
            # A log that is being replaced is missing for a moment.
            if follower.path != STDIN and follower.path.exists():
                raise
            news = False
        if news:
            # The first lines were there before the first poll.
            read, heard = True, time.monotonic() if read else 0.0
        state = state_of(follower.log()) if news else None
        if follower.ended:
            found = whole(follower)
            yield state_of(found, ending_of(follower, found))
            return
        if state is None and time.monotonic() >= asks:
            asks = time.monotonic() + _QUIET
            log = follower.log()
            # The wall clock may be set meanwhile, so it is used only for the time before the start of this command.
            seen = time.monotonic() - (heard or began)
            quiet = seen if heard else max(seen, quiet_of(follower))
            ending = ending_of(follower, log, quiet) if log.steps else None
            if ending is not None and (ending.standing is not standing or ending.over):
                standing = ending.standing
                state = state_of(log, ending) if ending.odd or ending.over else None
        elif news:
            asks, standing = max(asks, time.monotonic() + every), None
        yield state
        time.sleep(every)


def _as_lines(follower: Follower, every: float, as_json: bool) -> Status:
    told: set[object] = set()
    calm = True
    with progress.step(_("waiting for the first step")) as waiting:
        for state in _states(follower, every):
            if not terminal.is_read():
                break
            if state is None:
                continue
            with progress.suspended():
                _tell(state, told, as_json)
            calm = state.calm
            if state.ending is not None and state.ending.over:
                break
            waiting.what = _("waiting for the step after {step}").format(step=state.step)
            waiting.began = time.monotonic()
    return Status.FINE if calm else Status.FOUND


def _tell(state: State, told: set[object], as_json: bool) -> None:
    """Print only the lines that have not been printed yet. `told` holds the lines that have been printed."""
    if as_json:
        click.echo(json.dumps(content(state)))
        return
    # Without its figures, which change with each step.
    waiting = [re.sub(r"\d+", "", state.waiting.text)] if state.waiting and state.waiting.text else []
    news: list[object] = [state.step, *waiting, *state.odd]
    if state.ending is not None and state.ending.text():
        news.append(state.ending.standing)
    for line, about in zip(_summary(state), news, strict=True):
        if about not in told:
            told.add(about)
            terminal.echo(line)
    sys.stdout.flush()


def _summary(state: State) -> list[str]:
    """Return a line about the step, and a line about each anomaly."""
    parts = [_("step {step}").format(step=state.step)]
    for metric in (REWARD, LOSS, STALENESS, DROPPED):
        value = metric.of(state.log).get(state.step)
        if value is not None:
            parts.append(_("{metric} {value}").format(metric=metric.title, value=number(value)))
    if state.seconds is not None:
        longest = _(", ").join(
            _("{phase} {seconds:.3g}").format(phase=phase.name, seconds=phase.seconds) for phase in state.phases[:3]
        )
        parts.append(
            _("{seconds} s").format(seconds=number(state.seconds))
            + (_(" ({longest})").format(longest=longest) if longest else "")
        )
    if state.tokens_per_second is not None:
        parts.append(_("{tokens_per_second:.4g} tokens/s").format(tokens_per_second=state.tokens_per_second))
    simulated = " SIMULATED" if state.log.simulated else ""
    lines = [
        _(", ").join(parts) + simulated,
        *([state.waiting.text] if state.waiting and state.waiting.text else ()),
        *(
            _("{kind}, step {step}: {odd}").format(kind=odd.kind.value, step=odd.step, odd=odd.text)
            for odd in state.odd
        ),
    ]
    ending = state.ending.text() if state.ending else ""
    return [*lines, ending] if ending else lines


def _on_a_screen(follower: Follower, every: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from .screen import render

    console = Console(highlight=False)
    state: State | None = None
    since = time.monotonic()
    with Live(
        Text(clean(translate(_("{path}: no step yet").format(path=follower.path)))),
        console=console,
        screen=True,
        auto_refresh=False,
    ) as live:
        try:
            for news in _states(follower, every):
                state, since = (news, time.monotonic()) if news else (state, since)
                if state is not None:
                    # Draw again even without news: the terminal may have been resized.
                    quiet = time.monotonic() - since
                    live.update(render(state, console, console.height - 1, quiet), refresh=True)
        finally:
            live.stop()
            if state is not None:
                console.print(render(state, console))


def _is_screen() -> bool:
    return sys.stdout.isatty() and _is_unicode() and os.environ.get("TERM", "") not in ("", "dumb")


def _is_unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
