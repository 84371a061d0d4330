"""`python -m verl_npu.maintain lock`, which writes the lock of a pin. It reads a checkout or a wheel and imports
nothing of it."""

from __future__ import annotations

from pathlib import Path

import click
from packaging.utils import canonicalize_name

from ..cli import terminal
from ..cli.diff import patch_diff
from ..cli.options import complete_pin, example
from ..errors import DeclarationError
from ..features import bundles
from ..features.contributions import OURS
from ..language import gettext as _
from ..pins import pins
from ..registry.judge.lock import Lock
from ..registry.patch import Action, Bundle, Feature, Upstream
from ..registry.source.tree import SourceTree
from ..registry.state import Standing
from .locks import lock_path, record_lock, write_lock


@click.command(epilog=example("python -m verl_npu.maintain lock --pin v0.6.1 --source verl-0.6.1-py3-none-any.whl"))
@click.option(
    "--features", "owner", default=OURS, show_default=True, help="The Python distribution whose features are locked."
)
@click.option(
    "--upstream",
    default="verl",
    show_default=True,
    help="The upstream package whose source is recorded. The features must include patches for this upstream.",
)
@click.option(
    "--source", type=click.Path(path_type=Path), required=True, help="A checkout or a wheel of the upstream."
)
@click.option("--pin", required=True, shell_complete=complete_pin, help="The name of the pin, such as v0.6.1.")
@click.option(
    "--revision",
    default="",
    help="The commit or release of the pin. The default is the revision in the pin's pin.json file, or the name of "
    "the pin if there is no such file.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write the lock file to [default: the distribution's folder of lock files].",
)
@click.option("--replace", is_flag=True, help="Overwrite an existing lock file.")
def lock(owner: str, upstream: str, source: Path, pin: str, revision: str, output: Path | None, replace: bool) -> None:
    """Write the lock file of a pin from the pin's source code.

    The command does not import the upstream. For each feature that replaces upstream's code at this pin, the command
    also writes a diff next to the lock file. To see the changes of all other features, run `verl-npu explain`.

    Exit status: 0 if the lock file was written; 2 if the source cannot be read, or if the pin already has a lock file.
    """
    bundle, chosen = _chosen(owner, upstream)
    folder = output or bundle.locks
    path = lock_path(folder, upstream, pin)
    if path.exists() and not replace:
        raise DeclarationError(
            subject=str(path),
            found="this pin already has a lock",
            fix="add --replace to overwrite it, or name another folder with --output",
        )
    tree = SourceTree.at(source, chosen.packages)
    features = bundle.features
    known = pins().get(pin) if upstream == "verl" else None
    revision = revision or (known.commit or known.version if known is not None else pin)
    made = record_lock(chosen, pin, revision, tree, [patch for feature in features for patch in feature])
    write_lock(made, folder)
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


def _chosen(owner: str, upstream: str) -> tuple[Bundle, Upstream]:
    """Return the features of a distribution, and one of their upstreams. Raises DeclarationError if either does not
    exist."""
    found = {canonicalize_name(bundle.owner or OURS): bundle for bundle in bundles()}
    bundle = found.get(canonicalize_name(owner))
    if bundle is None:
        raise DeclarationError(
            subject=f"--features {owner}",
            expected=f"one of the distributions that contribute features: {', '.join(found)}",
            found=owner,
            fix="install the distribution, including its entry point, in this environment",
        )
    for error in bundle.errors:
        raise error
    chosen = next((one for one in bundle.upstreams if one.name == upstream), None)
    if chosen is None:
        raise DeclarationError(
            subject=f"--upstream {upstream}",
            expected=f"one of the upstreams of {owner}: {', '.join(one.name for one in bundle.upstreams)}",
            found=upstream,
            fix="correct the name, or add the upstream to the Contribution of this distribution",
        )
    return bundle, chosen


def _replacements(feature: Feature, made: Lock, tree: SourceTree) -> str:
    replaced = [
        patch for patch in feature if patch.action is Action.REPLACE and made.patches.get(patch.id) is Standing.NEEDED
    ]
    return "\n".join(patch_diff(patch, tree) for patch in replaced)
