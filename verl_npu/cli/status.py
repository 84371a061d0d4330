"""`verl-npu status`, which shows what verl-npu really did in a job's processes or in this process."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from .. import environment, process
from ..activation import status as status_of_this_process
from ..ascend import software
from ..errors import AscendSoftwareError, SourceError
from ..features.fleet.comparison import differences
from ..findings import Status
from ..language import gettext as _
from ..manifest import Manifest, read_manifests, titled
from ..registry.state import State
from . import terminal
from .options import example, json_option


@click.command(epilog=example("verl-npu status outputs/manifests", "verl-npu status outputs/manifests --targets"))
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@json_option("Print the manifests as JSON.")
@click.option(
    "--targets",
    is_flag=True,
    help=(
        "Also show the target and the state of each patch in each process, including the patches that upstream "
        "itself makes."
    ),
)
def status(folder: Path | None, as_json: bool, targets: bool) -> None:
    """Show which patches each process of a job applied.

    FOLDER is the job's VERL_NPU_MANIFEST_DIR. Without FOLDER, the command imports verl itself and shows the patches in
    its own process.

    Exit status: 0 if there are no problems; 1 if processes differ, if a feature drifted, failed, or was overwritten,
    if a manifest cannot be read, or if VERL_NPU_STRICT=1 is set but the installed torch_npu cannot be imported; 2 if
    there is nothing to show.
    """
    problem = software.problem() if folder is None else None
    manifests, unread = read_manifests(folder) if folder is not None else ([_this_process(problem)], [])
    for error in unread:
        terminal.fail(str(error))
    if not manifests and unread:
        sys.exit(Status.NOT_JUDGED)
    if not manifests:
        raise SourceError(
            subject=str(folder),
            expected=_("manifests of a job"),
            found=_("no manifest in this folder") if folder is not None and folder.is_dir() else _("no such folder"),
            fix=_("run the job with VERL_NPU_MANIFEST_DIR set to this folder in the environment of every process"),
        )
    differ = differences(manifests)
    if as_json:
        trouble = None if problem is None else str(problem)
        content = {
            "manifests": manifests,
            "differences": differ,
            "unread": [str(error) for error in unread],
            "torch_npu": trouble,
        }
        click.echo(json.dumps(content, indent=2))
    else:
        terminal.trouble(problem)
        _print(manifests, differ)
        if targets:
            _print_targets(manifests)
    found = {feature["state"] for manifest in manifests for feature in manifest["features"].values()}
    unusable = problem is not None and environment.STRICT.read()
    sys.exit(Status.FOUND if unusable or unread or differ or found & BAD else Status.FINE)


def _this_process(problem: AscendSoftwareError | None) -> Manifest:
    try:
        importlib.import_module("verl")
    except Exception as error:
        if problem is not None:
            # torch's own error would advise to switch torch_npu off.
            raise problem from error
        missing = isinstance(error, ModuleNotFoundError) and error.name == "verl"
        raise SourceError(
            subject="verl",
            expected=_("an importable verl package, or the FOLDER that contains a job's manifests"),
            found=_("no package named {name}").format(name="verl") if missing else f"{type(error).__name__}: {error}",
            fix=_("install verl in this environment, or pass the job's VERL_NPU_MANIFEST_DIR as FOLDER"),
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
        terminal.echo(_("SIMULATED: virtual NPUs"))
    tainted = sorted({str(name) for manifest in manifests for name in manifest["tainted"]})
    if tainted:
        terminal.line(
            terminal.styled(_("TAINTED: {tainted} applied by force").format(tainted=_(", ").join(tainted)), "red")
        )
    rows = [(_("process"), _("upstream"), _("cost"), _("activated by")), *map(_row, manifests)]
    terminal.table(rows, [""] * len(rows))
    found = shares(manifests)
    terminal.echo()
    if found:
        cells = [("feature", "state", "in"), *((share.feature, share.state, share.processes) for share in found)]
        terminal.table(cells, ["", *(colour(share.state) for share in found)])
        _print_reasons(manifests, found)
    elif not any(manifest["active"] for manifest in manifests):
        terminal.paragraph(
            _(
                "verl-npu is off: Ascend software (torch_npu) is not installed here, or VERL_NPU is off. "
                "VIRTUAL_ASCEND=2 gives this machine two virtual NPUs."
            )
        )
    else:
        terminal.echo(_("No process has imported verl, so verl-npu has not decided yet which features to apply."))
    _print_trouble(manifests)
    if differ:
        terminal.echo()
        terminal.line(terminal.styled(_("The processes differ:"), "red"))
    for each in differ:
        terminal.paragraph(each, indent="    ", label="  ")


def _print_reasons(manifests: Sequence[Manifest], found: Sequence[Share]) -> None:
    """Print why features are not applied. Features in a bad state are skipped, because the lines of their patches give
    the reason."""
    quiet = dict.fromkeys((each.feature, each.state) for each in found if each.state not in (State.APPLIED, *BAD))
    reasons = {each: why for each in quiet if (why := _why(manifests, *each))}
    if reasons:
        terminal.echo()
    for (name, state), why in reasons.items():
        said = _("{feature} is {state}: {why}").format(feature=name, state=state, why=why)
        terminal.paragraph(said, indent="    ", label="  ")


def _why(manifests: Sequence[Manifest], name: str, state: str) -> str:
    """Return the reason for a feature's state in one line, or an empty string if the feature has that state in no
    process."""
    features = [found for manifest in manifests if (found := manifest["features"].get(name))]
    features = [each for each in features if each["state"] == state]
    patches = [patch for each in features for patch in each["patches"].values() if patch["state"] == state]
    if not patches:
        return _("the packages that this feature patches are not installed here") if features else ""
    pending = state == State.PENDING
    first, *others = dict.fromkeys(
        patch["target"].partition(":")[0] if pending else patch["reason"] for patch in patches
    )
    more = _(" and {count} more").format(count=len(others)) if others else ""
    return (_("not imported yet: {module}").format(module=first) if pending else first) + more


def _row(manifest: Manifest) -> tuple[str, ...]:
    upstream = ""
    for name, entry in manifest["upstreams"].items():
        if entry["nearest_pin"]:
            upstream = f"{name} {entry['nearest_pin']}{'' if entry['exact'] else ' (nearest)'}"
            break
    # A manifest may hold any number, but no process needs a day for this.
    cost = f"{min(manifest['seconds'], 86400) * 1e3:.0f} ms"
    return _name(manifest), upstream or "-", cost, manifest["origin"] or "nothing"


def _print_trouble(manifests: Sequence[Manifest]) -> None:
    reasons = {
        (patch_id, patch["state"], patch["reason"]): None
        for manifest in manifests
        for feature in manifest["features"].values()
        for patch_id, patch in feature["patches"].items()
        if patch["state"] in BAD
    }
    for patch_id, state, reason in reasons:
        terminal.line("  ", patch_id, "  ", terminal.styled(state, colour(state)))
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
            terminal.line("  ", terminal.styled(state, colour(state)), _(" in "), _(", ").join(processes))


BAD = frozenset({State.DRIFTED, State.FAILED, State.OVERWRITTEN})
"""States that require an action by the user."""
QUIET = frozenset({State.APPLIED, State.PENDING, State.NATIVE, State.ABSENT})
"""States without a problem."""

_COLOURS: Mapping[str, str] = {
    State.DRIFTED: "red",
    State.FAILED: "red",
    State.OVERWRITTEN: "red",
    State.ABSENT: "dim",
    State.PENDING: "green",
    State.OFF: "yellow",
    State.APPLIED: "green",
    State.NATIVE: "green",
}


def colour(state: str) -> str:
    """Return the terminal style for a state, or an empty string if `state` is not a known state."""
    return _COLOURS.get(state, "")


@dataclass(frozen=True, slots=True)
class Share:
    """A state of a feature, and the processes in which the feature has that state."""

    feature: str
    state: str
    processes: str
    """The processes as text for the user: `all 6`, or the roles. The number of processes follows a role with several
    processes."""


def _name(manifest: Manifest) -> str:
    """Return a process's name in human-readable form."""
    return f"{manifest['role']} {manifest['host']}:{manifest['pid']}"


def shares(manifests: Sequence[Manifest]) -> list[Share]:
    """Return each state of each feature, with the processes in which the feature has that state."""
    found = []
    for name in dict.fromkeys(name for manifest in manifests for name in manifest["features"]):
        by_state: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            entry = manifest["features"].get(name)
            by_state.setdefault(entry["state"] if entry else "unknown", []).append(manifest)
        states = {state: _process_names(members, manifests) for state, members in by_state.items()}
        found += [Share(titled(name, manifests), state, processes) for state, processes in states.items()]
    return found


def _process_names(members: Sequence[Manifest], everybody: Sequence[Manifest]) -> str:
    if len(members) == len(everybody):
        return _("the only process") if len(members) == 1 else _("all {count} processes").format(count=len(members))
    present = Counter(member["role"] for member in members)
    total = Counter(manifest["role"] for manifest in everybody)
    names = []
    for role, count in present.items():
        if count < total[role]:
            # Some processes of this role have another state, so name each of them.
            names += [f"{role} {m['host']}:{m['pid']}" for m in members if m["role"] == role]
        else:
            names.append(role if count == 1 else f"{count} {role}")
    return _(", ").join(names)
