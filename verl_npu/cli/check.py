"""`verl-npu check`: the whole verification, statically: no upstream is imported, and no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..features import UPSTREAMS, load
from ..registry.judge.difference import drift_diff
from ..registry.judge.judgement import judge
from ..registry.judge.lock import Lock, Record
from ..registry.judge.revision import Revision
from ..registry.judge.verdict import Verdict
from ..registry.patch import Feature, owners
from ..registry.source.tree import SourceTree
from ..registry.state import State, feature_state
from . import upstreams

__all__ = ["check", "style"]

_STYLES = {
    State.DRIFTED: "red",
    State.FAILED: "red",
    State.SHADOWED: "red",
    State.ABSENT: "dim",
    State.PENDING: "yellow",
    State.DISABLED: "yellow",
}


def style(state: State) -> str:
    """The colour of a state in a terminal."""
    return _STYLES.get(state, "green")


@click.command()
@click.option("--source", default=upstreams.INSTALLED, show_default=True, help="A checkout or a wheel of verl.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--diff", is_flag=True, help="Show how each drifted target differs from the nearest pin.")
def check(source: str, as_json: bool, diff: bool) -> None:
    """Say for each feature whether it fits an upstream. Status 1 where one drifted, 2 for a wrong call."""
    features, tree, locks = load(), upstreams.tree(source), upstreams.locks()
    revisions, verdicts = judge(features, UPSTREAMS, tree, locks)
    if as_json:
        click.echo(json.dumps(_content(features, revisions, verdicts), indent=2))
    else:
        _print(features, revisions, verdicts)
    if diff:
        for text in _diffs(features, tree, locks, revisions, verdicts):
            click.echo(text)
    sys.exit(int(any(verdict.state is State.DRIFTED for verdict in verdicts.values())))


def _content(
    features: Sequence[Feature], revisions: Mapping[str, Revision], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    return {
        "revision": revisions[UPSTREAMS[0].name].as_json(),
        "upstreams": {name: revision.as_json() for name, revision in revisions.items()},
        "features": [
            {
                "name": feature.name,
                "state": str(feature_state(verdicts[patch.id].state for patch in feature)),
                "patches": [
                    {
                        "id": patch.id,
                        "target": str(patch.target),
                        "state": str(verdicts[patch.id].state),
                        "reason": verdicts[patch.id].reason,
                    }
                    for patch in feature
                ],
            }
            for feature in features
        ],
    }


def _print(features: Sequence[Feature], revisions: Mapping[str, Revision], verdicts: Mapping[str, Verdict]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(", ".join(f"{name} {revision}" for name, revision in revisions.items()))
    for name, revision in revisions.items():
        for target in revision.differs:
            console.print(f"  {name}: {target} is not as at {revision.nearest_pin}", style="yellow", markup=False)
    width = max(len(patch.id) for feature in features for patch in feature)
    for feature in features:
        state = feature_state(verdicts[patch.id].state for patch in feature)
        console.print()
        console.print(Text.assemble((feature.name, "bold"), " ", (str(state), f"bold {style(state)}")), end="")
        console.print(f"  {feature.summary}", style="dim", markup=False)
        for patch in feature:
            verdict = verdicts[patch.id]
            console.print(
                Text.assemble(f"  {patch.id:{width}} ", (f"{verdict.state!s:9}", style(verdict.state))), end=""
            )
            console.print(f" {patch.target}", markup=False)
            console.print(f"  {'':{width}} {'':9} {verdict.reason}", style="dim", markup=False)


def _diffs(
    features: Sequence[Feature],
    tree: SourceTree,
    locks: Mapping[str, Sequence[Lock]],
    revisions: Mapping[str, Revision],
    verdicts: Mapping[str, Verdict],
) -> list[str]:
    owner = owners(UPSTREAMS)
    texts = []
    for patch in (patch for feature in features for patch in feature):
        name = owner[patch.target.package]
        pin = revisions[name].nearest_pin
        lock = next((lock for lock in locks[name] if lock.pin == pin), None)
        if verdicts[patch.id].state is State.DRIFTED and lock is not None:
            texts.append(drift_diff(patch.target, pin, lock.targets.get(patch.target, Record()), tree))
    return texts
