"""`python -m verl_npu.maintain lock`: write the lock of a pin from a checkout or a wheel, importing nothing of it."""

from __future__ import annotations

from pathlib import Path

import click

from ..cli import terminal
from ..cli.diff import patch_diff
from ..cli.options import complete_pin, example
from ..features import UPSTREAMS, load, locks_folder
from ..language import gettext as _
from ..pins import pins
from ..registry.judge.lock import Lock
from ..registry.patch import Action, Feature
from ..registry.source.tree import SourceTree
from ..registry.state import Standing
from .locks import record_lock, write_lock


@click.command(epilog=example("python -m verl_npu.maintain lock --pin v0.6.1 --source verl-0.6.1-py3-none-any.whl"))
@click.option("--upstream", type=click.Choice([u.name for u in UPSTREAMS]), default="verl", show_default=True)
@click.option(
    "--source", type=click.Path(path_type=Path), required=True, help="A checkout or a wheel of the upstream."
)
@click.option("--pin", required=True, shell_complete=complete_pin, help="The name of the pin, such as v0.6.1.")
@click.option("--revision", default="", help="The commit or release; by default what pin.json says, or the pin.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the locks; the one of this installation by default.",
)
def lock(upstream: str, source: Path, pin: str, revision: str, output: Path | None) -> None:
    """Write the lock of a pin from its source.

    Nothing of the upstream is imported. Beside the lock goes a diff for each feature whose code stands in place of
    upstream's there; `verl-npu explain` shows every other change.

    Exit status: 0 written, 2 the source cannot be read.
    """
    chosen = next(u for u in UPSTREAMS if u.name == upstream)
    tree = SourceTree.at(source, chosen.packages)
    features = load()
    known = pins().get(pin) if upstream == "verl" else None
    revision = revision or (known.commit or known.version if known is not None else pin)
    made = record_lock(chosen, pin, revision, tree, [patch for feature in features for patch in feature])
    path = write_lock(made, output or locks_folder())
    for stale in path.parent.glob("*.diff"):
        stale.unlink()
    for feature in features:
        text = _replacements(feature, made, tree)
        if text:
            (path.parent / f"{feature.name}.diff").write_text(text)
    terminal.echo(
        _("{path}: {count} targets, {made_patches} patches").format(
            path=path, count=len(made.targets), made_patches=len(made.patches)
        )
    )


def _replacements(feature: Feature, made: Lock, tree: SourceTree) -> str:
    replaced = [
        patch for patch in feature if patch.action is Action.REPLACE and made.patches.get(patch.id) is Standing.NEEDED
    ]
    return "\n".join(patch_diff(patch, tree) for patch in replaced)
