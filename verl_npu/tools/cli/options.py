"""What several commands take and show: options, what the shell completes for them, and examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from ...features import load
from ...language import gettext as _
from ...pins import PINS, Environment, Pin
from ...registry.patch import Feature
from ..installation.target import Arch
from .upstreams import INSTALLED, locks

Command = TypeVar("Command", bound=Callable[..., object])


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path, or the one word that stands for the installed upstreams."""
    own = [CompletionItem(INSTALLED)] if incomplete and INSTALLED.startswith(incomplete) else []
    return [*own, CompletionItem(incomplete, type="file")]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a feature or a code, or once its dot is typed a patch of that feature."""
    # It reads what all commands know, which the others that take these options need not wait for.
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
    # Two candidates keep the shell from adding a blank after the feature, where a dot may follow.
    return [CompletionItem(feature.name, help=feature.summary), *(CompletionItem(patch.id) for patch in feature)]


def complete_pin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a pin of the upstream that the command line names, or of any."""
    chosen = ctx.params.get("upstream")
    pins = {lock.pin for name, found in locks().items() if chosen in (None, name) for lock in found}
    return [CompletionItem(pin) for pin in sorted(pins) if pin.startswith(incomplete)]


def example(*commands: str) -> str:
    """Return the end of a command's help: calls that one can copy."""
    # \b keeps click from filling the lines as running text.
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {each}" for each in commands)])


def json_option(help: str = "Print the result as JSON.") -> Callable[[Command], Command]:
    """Declare `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def source_option(help: str) -> Callable[[Command], Command]:
    """Declare `--source`, or `--verl`, which is what is installed if it is left out."""
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


verl_option = click.option(
    "--verl",
    "--source",
    "verl",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The source tree to start it in.",
)
unconfined_option = click.option(
    "--unconfined", is_flag=True, help="Run what is not ours without a sandbox, with your home and your network."
)
arch_option = click.option(
    "--arch",
    type=click.Choice([each.value for each in Arch]),
    default="arm",
    show_default=True,
    help="The processors.",
)
environment_option = click.option(
    "--for",
    "named",
    type=click.Choice([*dict.fromkeys(each.id for pin in PINS.values() for each in pin.environments)]),
    help="The pin's environment: that of verl's documents, or of the image that is published for it "
    "[default: documents].",
)


def named_of(pin: Pin, named: str | None) -> Environment:
    """Return the environment of that name; the first without one. Raises click.UsageError if the pin has none."""
    found = next((each for each in pin.environments if named in (None, each.id)), None)
    if found is None:
        have = _(", ").join(each.id for each in pin.environments)
        also = _(", ").join(
            other.name for other in PINS.values() if any(each.id == named for each in other.environments)
        )
        raise click.UsageError(
            _("--for {named}: expected one of {have} with --pin {pin}; {also} has {named}").format(
                named=named, have=have, pin=pin.name, also=also
            )
        )
    return found
