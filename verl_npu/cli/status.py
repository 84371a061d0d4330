"""`verl-npu status`: what a job's processes, or this interpreter, really did."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .. import process
from ..activation import status as status_of_this_process
from ..errors import SourceError
from ..features.fleet.comparison import differences
from ..manifest import Manifest, read_manifests
from ..registry.state import State
from .check import style

__all__ = ["status"]


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifests as JSON.")
@click.option("--targets", is_flag=True, help="Show each patch as well: its target, and its state by process.")
def status(folder: Path | None, as_json: bool, targets: bool) -> None:
    """Show the manifests that a job wrote to FOLDER (its VERL_NPU_MANIFEST_DIR), or import verl here and look.

    Status 1 where processes differ, or a feature drifted, failed or was overwritten.
    """
    manifests = read_manifests(folder) if folder is not None else [_here()]
    if not manifests:
        raise SourceError(
            subject=str(folder),
            expected="manifests of a job",
            found="none",
            fix="run the job with VERL_NPU_MANIFEST_DIR set to this folder, in the environment of every process",
        )
    differ = differences(manifests)
    if as_json:
        click.echo(json.dumps({"manifests": manifests, "differences": differ}, indent=2))
    else:
        _print(manifests, differ)
        if targets:
            _print_targets(manifests)
    bad = {str(State.DRIFTED), str(State.FAILED), str(State.SHADOWED)}
    states = {feature["state"] for manifest in manifests for feature in manifest["features"].values()}
    sys.exit(int(bool(differ or states & bad)))


def _here() -> Manifest:
    try:
        importlib.import_module("verl")
    except ModuleNotFoundError as error:
        if error.name != "verl":
            raise
        raise SourceError(
            subject="verl",
            expected="verl in this environment, or the FOLDER of a job's manifests",
            found="no package of that name",
            fix="install verl here, or give the folder that a job had as VERL_NPU_MANIFEST_DIR",
        ) from None
    identity = process.identity()
    return {
        **status_of_this_process(),
        "host": identity.host,
        "pid": identity.pid,
        "token": identity.token,
    }


def _print(manifests: Sequence[Mapping[str, Any]], differ: Sequence[str]) -> None:
    console = Console(highlight=False)
    features = list(dict.fromkeys(name for manifest in manifests for name in manifest["features"]))
    table = Table("process", "upstream", *features, "cost", "activated by", box=None)
    for manifest in manifests:
        states = [manifest["features"].get(name, {}).get("state", "-") for name in features]
        table.add_row(
            f"{manifest['role']} {manifest['host']}:{manifest['pid']}",
            ", ".join(
                f"{name} {u['nearest_pin']}{'' if u['exact'] else ' (nearest)'}" for name, u in _shown(manifest)
            ),
            *(f"[{style(State(s))}]{s}" if s != "-" else s for s in states),
            f"{manifest.get('seconds', 0) * 1e3:.0f} ms",
            manifest["origin"],
        )
    if any(manifest["simulated"] for manifest in manifests):
        console.print("SIMULATED: virtual NPUs")
    tainted = sorted({name for manifest in manifests for name in manifest["tainted"]})
    if tainted:
        console.print(f"TAINTED: {', '.join(tainted)} applied by force", style="red")
    console.print(table)
    for line in differ:
        console.print(line, style="red", markup=False)


def _print_targets(manifests: Sequence[Mapping[str, Any]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for manifest in manifests:
        for feature in manifest["features"].values():
            for patch_id, patch in feature["patches"].items():
                by_state = found.setdefault((patch_id, patch["target"]), {})
                by_state.setdefault(patch["state"], []).append(f"{manifest['role']}:{manifest['pid']}")
    for (patch_id, target), by_state in found.items():
        console.print()
        console.print(f"{patch_id}  {target}", markup=False)
        for state, processes in by_state.items():
            console.print(f"  [{style(State(state))}]{state}[/] in {', '.join(processes)}")


def _shown(manifest: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, upstream) for name, upstream in manifest["upstreams"].items() if upstream["nearest_pin"]][:1]
