"""Which of a pin's environments a command is about: `--for`."""

from __future__ import annotations

import click

from ...pins import PINS, Environment, Pin

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
        have = ", ".join(each.id for each in pin.environments)
        also = ", ".join(other.name for other in PINS.values() if any(each.id == named for each in other.environments))
        raise click.UsageError(f"--for {named}: expected one of {have} with --pin {pin.name}; {also} has {named}")
    return found
