"""`verl-npu lock`: write the lock of a pin from a source tree or a wheel, importing nothing of it."""

from __future__ import annotations

from pathlib import Path

import click

from ..features import UPSTREAMS, load, locks_folder
from ..registry.judge.difference import patch_diff
from ..registry.judge.lock import Lock, record_lock, write_lock
from ..registry.patch import Feature
from ..registry.source.tree import SourceTree
from ..registry.state import Standing

__all__ = ["lock"]


@click.command()
@click.option("--upstream", type=click.Choice([u.name for u in UPSTREAMS]), default="verl", show_default=True)
@click.option("--source", type=click.Path(exists=True, path_type=Path), required=True, help="A checkout or a wheel.")
@click.option("--pin", required=True, help="The name of the pin, for example v0.6.1.")
@click.option("--revision", default="", help="The commit or release that the pin stands for; the pin by default.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the locks; that of this installation by default.",
)
def lock(upstream: str, source: Path, pin: str, revision: str, output: Path | None) -> None:
    """Write the lock of a pin from its source, and beside it what our patches change there, as diffs."""
    chosen = next(u for u in UPSTREAMS if u.name == upstream)
    tree = SourceTree.at(source, chosen.packages)
    features = load()
    made = record_lock(chosen, pin, revision or pin, tree, [patch for feature in features for patch in feature])
    path = write_lock(made, output or locks_folder())
    for stale in path.parent.glob("*.diff"):
        stale.unlink()
    for feature in features:
        text = visible(feature, made, tree)
        if text:
            (path.parent / f"{feature.name}.diff").write_text(text)
    click.echo(f"{path}: {len(made.targets)} targets, {len(made.patches)} patches")


def visible(feature: Feature, made: Lock, tree: SourceTree) -> str:
    """What the patches of `feature` change at a pin, as a unified diff; empty where none is needed there."""
    needed = [patch for patch in feature if made.patches.get(patch.id) is Standing.NEEDED]
    return "\n".join(patch_diff(patch, tree) for patch in needed)
