"""`verl-npu explain`: why a patch is there, what it does, and what will retire it."""

from __future__ import annotations

import click

from ..errors import DeclarationError
from ..features import UPSTREAMS, load
from ..registry.judge.difference import patch_diff
from ..registry.patch import owners
from . import upstreams

__all__ = ["explain"]


@click.command()
@click.argument("patch_id", metavar="PATCH")
@click.option("--source", default=upstreams.INSTALLED, show_default=True, help="A checkout or a wheel of verl.")
def explain(patch_id: str, source: str) -> None:
    """Explain one PATCH, for example device.composed_device."""
    patches = {patch.id: patch for feature in load() for patch in feature}
    if patch_id not in patches:
        raise DeclarationError(
            subject="PATCH",
            expected=f"one of {', '.join(sorted(patches))}",
            found=patch_id,
            fix="take a name from `verl-npu check`",
        )
    patch = patches[patch_id]
    owner = owners(UPSTREAMS)[patch.target.package]
    standings = [f"{lock.pin} {lock.patches[patch.id]}" for lock in upstreams.locks()[owner]]
    rows = {
        "target": patch.target,
        "action": patch.action,
        "why": patch.why,
        "how": patch.how,
        "link": patch.link,
        "retired by": patch.retired_by,
        "requires": patch.requires or "nothing",
        "at": ", ".join(standings),
    }
    click.echo(patch.id)
    for label, value in rows.items():
        click.echo(f"  {label:10}  {value}")
    click.echo()
    click.echo(patch_diff(patch, upstreams.tree(source)), nl=False)
