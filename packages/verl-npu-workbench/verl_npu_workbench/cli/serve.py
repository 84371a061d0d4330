"""`verl-npu serve`: vLLM's OpenAI-style server for a model, until Ctrl-C."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.cli.options import example
from verl_npu.errors import ServingError
from verl_npu.language import gettext as _

from ..serving.launch import Engine, Launch, check, engine, variables_of
from ..serving.server import Running, started, tail


@click.command(
    epilog=example(
        "verl-npu serve models/step-100",
        "verl-npu serve models/step-100 --tensor-parallel-size 4 -- --max-num-seqs 64",
    )
)
@click.argument("model")
@click.argument("more", nargs=-1, metavar="[-- VLLM'S OPTIONS]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens; 0.0.0.0 for all networks.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--name", help="What requests call the model [default: MODEL].")
@click.option("--tensor-parallel-size", "parallel", type=click.IntRange(1), default=1, show_default=True)
@click.option("--dtype", default="auto", show_default=True, help="vLLM's; auto is the model's own.")
@click.option("--max-model-len", type=click.IntRange(1), help="Prompt and answer together [default: the model's].")
@click.option(
    "--limit", type=click.FloatRange(1), default=1800.0, show_default=True, help="Seconds until it has to answer."
)
@click.option("--log", type=click.Path(path_type=Path), help="vLLM's log [default: outputs/serve-PORT.log].")
@click.option("--dry-run", is_flag=True, help="Print the command, and end.")
def serve(
    model: str,
    more: tuple[str, ...],
    host: str,
    port: int,
    name: str | None,
    parallel: int,
    dtype: str,
    max_model_len: int | None,
    limit: float,
    log: Path | None,
    dry_run: bool,
) -> None:
    """Serve a model by vLLM, and say so when it answers.

    MODEL is a folder in Hugging Face's format, such as `verl-npu merge` makes. It is served by vllm-ascend where there
    are NPUs, and else by vLLM's CPU engine. Ctrl-C ends the server with all that it started. If it does not come up,
    the end of its log is shown, with the cause if that is known.

    Exit status: 0 shown by --dry-run, 1 the server ended by itself, 2 it did not come up, 130 ended by Ctrl-C, 143 by
    SIGTERM.
    """
    found = engine()
    launch = Launch(model, found, host, port, name or model, parallel, dtype, max_model_len, more)
    check(launch)
    if dry_run:
        variables = [f"{key}={shlex.quote(value)}" for key, value in variables_of(launch).items()]
        terminal.echo(" ".join([*variables, shlex.join(launch.command())]))
        return
    simulated = " SIMULATED" if found is Engine.VIRTUAL else ""
    terminal.line(f"{found.value}: {model}{simulated}")
    try:
        with started(launch, log or Path(f"outputs/serve-{port}.log")) as running:
            _serve(running, limit)
    except KeyboardInterrupt:
        terminal.line(_("ended, with all that it had started"))
        raise


def _serve(running: Running, limit: float) -> None:
    try:
        seconds = _wait(running, limit)
    except ServingError:
        for line in tail(running.log):
            terminal.line("    | ", line)
        raise
    name, url = running.launch.name, running.launch.url
    terminal.line(
        terminal.styled("serving", "green"),
        _(" {name} at {url}/v1 after {seconds:.0f} s; Ctrl-C ends it").format(name=name, url=url, seconds=seconds),
    )
    sys.stdout.flush()
    status = running.process.wait()
    for line in tail(running.log):
        terminal.line("    | ", line)
    terminal.fail(
        _("the server ended by itself with status {status}; its log is {log}").format(status=status, log=running.log)
    )
    sys.exit(1)


def _wait(running: Running, limit: float) -> float:
    with progress.step(_("waiting for the server")) as waiting:

        def tell(passed: float, last: str) -> None:
            waiting.detail = last

        return running.wait_until_it_answers(limit, tell)
