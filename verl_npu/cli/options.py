"""Options that several commands share, their shell completion, and the examples in help texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from ..features import load
from ..registry.patch import Feature
from .upstreams import INSTALLED, locks

Command = TypeVar("Command", bound=Callable[..., object])


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return shell completions for a path, or for the keyword that selects the installed upstreams."""
    own = [CompletionItem(INSTALLED)] if incomplete and INSTALLED.startswith(incomplete) else []
    return [*own, CompletionItem(incomplete, type="file")]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a code or the name of a feature. After the name of a feature and a dot, complete the name of one of
    the feature's patches."""
    # Imported here, because codes loads the codes of all commands.
    from .. import codes

    features = load()
    if "." in incomplete:
        patches = [patch for feature in features for patch in feature]
        return [
            CompletionItem(patch.id, help=str(patch.target)) for patch in patches if patch.id.startswith(incomplete)
        ]
    known = [CompletionItem(code) for code in codes.meanings() if incomplete and code.startswith(incomplete)]
    return [*(item for feature in features for item in _feature(feature, incomplete)), *known]


def _feature(feature: Feature, incomplete: str) -> list[CompletionItem]:
    if not feature.name.startswith(incomplete):
        return []
    # With two candidates, the shell adds no blank after the feature, where a dot may follow.
    return [CompletionItem(feature.name, help=feature.summary), *(CompletionItem(patch.id) for patch in feature)]


def complete_pin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return shell completions for the name of a pin. If the command line specifies an upstream, return only that
    upstream's pins."""
    chosen = ctx.params.get("upstream")
    pins = {lock.pin for name, found in locks().items() if chosen in (None, name) for lock in found}
    return [CompletionItem(pin) for pin in sorted(pins) if pin.startswith(incomplete)]


def example(*commands: str) -> str:
    """Return the last part of a command's help: example calls to copy."""
    # \b keeps click from reflowing the lines.
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {each}" for each in commands)])


def json_option(help: str = "Print the result as JSON.") -> Callable[[Command], Command]:
    """Declare the option `--json`. The command gets it as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def source_option(help: str) -> Callable[[Command], Command]:
    """Declare the option `--source`, also spelled `--verl`. By default, the command reads the installed upstreams."""
    return click.option(
        "--source",
        "--verl",
        "source",
        metavar="PATH",
        default=INSTALLED,
        show_default=True,
        shell_complete=complete_source,
        help=help,
    )
