"""`verl-npu status`: what a job's processes, or this interpreter, really did."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ... import environment, process
from ...activation import status as status_of_this_process
from ...ascend import software
from ...errors import AscendSoftwareError, SourceError
from ...features.fleet.comparison import differences
from ...manifest import Manifest, read_manifests
from . import states, terminal
from .help import example


@click.command(epilog=example("verl-npu status outputs/manifests", "verl-npu status outputs/manifests --targets"))
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the manifests as JSON.")
@click.option(
    "--targets",
    is_flag=True,
    help="Show each patch as well, upstream's own too: its target, and its state by process.",
)
def status(folder: Path | None, as_json: bool, targets: bool) -> None:
    """Show what the processes of a job really did.

    FOLDER is what the job had as VERL_NPU_MANIFEST_DIR. Without it, verl is imported here, and this process is shown.

    Exit status: 0 all is as it should be, 1 processes differ or a feature drifted, failed, was missed or overwritten,
    or, with VERL_NPU_STRICT=1, the torch_npu that is installed here cannot be imported, 2 nothing can be shown.
    """
    problem = software.problem() if folder is None else None
    manifests = read_manifests(folder) if folder is not None else [_here(problem)]
    if not manifests:
        raise SourceError(
            subject=str(folder),
            expected="manifests of a job",
            found="none" if folder is not None and folder.is_dir() else "no such folder",
            fix="run the job with VERL_NPU_MANIFEST_DIR set to this folder, in the environment of every process",
        )
    differ = differences(manifests)
    if as_json:
        trouble = None if problem is None else str(problem)
        click.echo(json.dumps({"manifests": manifests, "differences": differ, "torch_npu": trouble}, indent=2))
    else:
        terminal.trouble(problem)
        _print(manifests, differ)
        if targets:
            _print_targets(manifests)
    found = {feature["state"] for manifest in manifests for feature in manifest["features"].values()}
    unusable = problem is not None and environment.STRICT.read()
    sys.exit(int(bool(unusable or differ or found & states.BAD)))


def _here(problem: AscendSoftwareError | None) -> Manifest:
    try:
        importlib.import_module("verl")
    except Exception as error:
        if problem is not None:
            # torch's own error advises to switch torch_npu off.
            raise problem from error
        missing = isinstance(error, ModuleNotFoundError) and error.name == "verl"
        raise SourceError(
            subject="verl",
            expected="a verl that can be imported here, or the FOLDER of a job's manifests",
            found="no package of that name" if missing else f"{type(error).__name__}: {error}",
            fix="install verl here, or give the folder that a job had as VERL_NPU_MANIFEST_DIR",
        ) from error
    identity = process.identity()
    return {
        **status_of_this_process(),
        "host": identity.host,
        "pid": identity.pid,
        "token": identity.token,
    }


def _print(manifests: Sequence[Manifest], differ: Sequence[str]) -> None:
    if any(manifest["simulated"] for manifest in manifests):
        terminal.echo("SIMULATED: virtual NPUs")
    tainted = sorted({str(name) for manifest in manifests for name in manifest["tainted"]})
    if tainted:
        terminal.line(terminal.styled(f"TAINTED: {', '.join(tainted)} applied by force", "red"))
    rows = [("process", "upstream", "cost", "activated by"), *map(_row, manifests)]
    terminal.table(rows, [""] * len(rows))
    shares = states.shares(manifests)
    terminal.echo()
    if shares:
        cells = [("feature", "state", "in"), *((share.feature, share.state, share.processes) for share in shares)]
        terminal.table(cells, ["", *(states.colour(share.state) for share in shares)])
    elif not any(manifest["active"] for manifest in manifests):
        terminal.paragraph(
            "verl-npu is off: there is no Ascend software (torch_npu) here, or VERL_NPU is off. "
            "VIRTUAL_ASCEND=2 gives this machine two virtual NPUs."
        )
    else:
        terminal.echo("No process has looked at any feature: none has imported verl.")
    _print_trouble(manifests)
    if differ:
        terminal.echo()
        terminal.line(terminal.styled("The processes differ:", "red"))
    for each in differ:
        terminal.paragraph(each, indent="    ", label="  ")


def _row(manifest: Manifest) -> tuple[str, ...]:
    upstream = ""
    for name, entry in manifest["upstreams"].items():
        if entry["nearest_pin"]:
            upstream = f"{name} {entry['nearest_pin']}{'' if entry['exact'] else ' (nearest)'}"
            break
    # A manifest may hold any number; no process needs a day for this.
    cost = f"{min(manifest['seconds'], 86400) * 1e3:.0f} ms"
    return states.process(manifest), upstream or "-", cost, manifest["origin"] or "nothing"


def _print_trouble(manifests: Sequence[Manifest]) -> None:
    reasons = {
        (patch_id, patch["state"], patch["reason"]): None
        for manifest in manifests
        for feature in manifest["features"].values()
        for patch_id, patch in feature["patches"].items()
        if patch["state"] in states.BAD
    }
    for patch_id, state, reason in reasons:
        terminal.line("  ", patch_id, "  ", terminal.styled(state, states.colour(state)))
        terminal.paragraph(reason, indent="    ")


def _print_targets(manifests: Sequence[Manifest]) -> None:
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for manifest in manifests:
        for feature in manifest["features"].values():
            for patch_id, patch in feature["patches"].items():
                by_state = found.setdefault((patch_id, patch["target"]), {})
                by_state.setdefault(patch["state"], []).append(f"{manifest['role']}:{manifest['pid']}")
        for target, native in manifest["natives"].items():
            by_state = found.setdefault((native["by"], target), {})
            by_state.setdefault(native["state"], []).append(f"{manifest['role']}:{manifest['pid']}")
    for (patch_id, target), by_state in found.items():
        terminal.echo()
        terminal.line(patch_id, "  ", target)
        for state, processes in by_state.items():
            terminal.line("  ", terminal.styled(state, states.colour(state)), " in ", ", ".join(processes))
