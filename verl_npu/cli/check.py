"""`verl-npu check`, which judges all patches without importing torch or any upstream."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from .. import environment
from ..ascend import software
from ..errors import AscendSoftwareError, SettingError, VerlNpuError
from ..features import PATCH_MODULES, UPSTREAMS, bundles, policy, wrong_settings
from ..features.engine_names import NAMES, Lack, lacks
from ..findings import Status
from ..language import gettext as _
from ..language import ngettext
from ..registry.judge.bundles import Judged, judge_bundles
from ..registry.judge.lock import Record, Revision
from ..registry.judge.natives import Native, confirmed, judge_natives, patched_packages
from ..registry.judge.verdict import Verdict
from ..registry.patch import Bundle, Feature, Patch, owners
from ..registry.source.tree import SourceTree
from ..registry.state import State, feature_state
from . import terminal, upstreams
from .diff import drift_diff
from .options import example, json_option, source_option
from .status import BAD, QUIET, colour

if TYPE_CHECKING:
    from .model import Model, Part

_MEANING = {
    State.PENDING: _("fits, and will be applied when verl is imported"),
    State.NATIVE: _("upstream has the fix, or says that it applies one; each process reports whether it did"),
    State.ABSENT: _("this upstream has nothing to patch, or the package that the feature is for is not installed"),
    State.DRIFTED: _("upstream changed the patched code, so the feature is left out"),
    State.FAILED: _(
        "needed but not in force: upstream's own patch uses a missing name, or verl-npu cannot check the patch"
    ),
    State.OFF: _("left out, because you switched it off"),
}

_COVERING = (State.PENDING, State.DRIFTED)
"""The states of a patch that replaces upstream's own patch of the same target, or that would replace it if the patch
fitted."""


@dataclass(frozen=True, slots=True)
class _Result:
    features: Sequence[Feature]
    revisions: Mapping[str, Revision]
    verdicts: Mapping[str, Verdict]
    natives: Sequence[Native]
    problem: AscendSoftwareError | None
    """The error of importing the installed torch_npu, if the import fails."""
    lacks: Sequence[Lack]
    """The names that verl-npu needs and that the installed vLLM and vllm-ascend do not have."""
    lacking: Sequence[str]
    """The packages that a job needs and that this environment does not have. Empty if the command checks another
    verl."""
    wrong: Sequence[SettingError]
    """One error for each of verl-npu's variables that has an invalid value."""
    undeclared: Sequence[VerlNpuError]
    """The errors in declarations and locks. The features with these errors are not applied."""
    strange: Sequence[str]
    """Those files with patches or locks in the installed verl-npu that differ from its wheel."""

    def state(self, feature: Feature) -> State:
        return feature_state(self.verdicts[patch.id].state for patch in feature)


@click.command(
    epilog=example("verl-npu check", "verl-npu check --source verl-0.7.1-py3-none-any.whl", "verl-npu check Qwen3-8B")
)
@click.argument("model", required=False)
@source_option("Check this checkout or wheel of verl.")
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show every patch, and all differences between your version of verl and the nearest pin.",
)
@json_option("Print the complete result as JSON.")
@click.option(
    "--diff",
    is_flag=True,
    help="For each drifted patch, show how its target's source differs from the source at the nearest pin.",
)
def check(model: str | None, source: str, verbose: bool, as_json: bool, diff: bool) -> None:
    """Check the patches for your verl version, or inspect a model.

    Without MODEL, the command imports neither verl nor torch, so it is safe to run anywhere. A separate process checks
    whether an installed torch_npu can be imported.

    The command also checks the features that other installed packages add to verl-npu.

    MODEL is the path of a config.json file or of its folder, or a transformers model family such as qwen3_moe.
    With MODEL, the command builds the model without weights and shows which code runs the model's attention, norms,
    rotary embedding, MLPs, experts, and linear attention on an NPU: a patch, other NPU code, or code for any device.
    The command also names the class that the engine uses for the model. With MODEL, status 1 means that a job with
    this model would fail, or that a patch for the model drifted.

    Exit status: 0 if all features fit; 1 if a feature drifted or failed, if a feature needs one of upstream's own
    patches and this patch has no effect, if a declaration or an environment variable of verl-npu is invalid, or if
    torch_npu cannot be imported and VERL_NPU_STRICT=1 is set; 2 if verl is not installed, if its source cannot be
    read, or if MODEL cannot be built.
    """
    tree = upstreams.judged_tree(source)
    lacking = upstreams.missing_packages() if source == upstreams.INSTALLED else []
    judged, result = _judged(tree, lacking, here=source == upstreams.INSTALLED)
    if model is not None:
        _check_model(model, result, as_json)
    if as_json:
        click.echo(json.dumps(_content(result), indent=2))
    else:
        _print(result, verbose)
    if diff:
        for text in _diffs(judged, result):
            terminal.block(text)
    unusable = result.problem is not None and _is_strict()
    bad = any(verdict.state in BAD for verdict in result.verdicts.values())
    sys.exit(Status.FOUND if unusable or bad or result.wrong or result.undeclared else Status.FINE)


def _check_model(name: str, result: _Result, as_json: bool) -> NoReturn:
    # Imported here, because it loads the patches of attention, which only a model needs.
    from . import model

    found = model.read(name, _covers(result))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _print_revisions(result.revisions, verbose=False)
        _print_model(found)
    sys.exit(Status.FOUND if {"refused", "drifted"} & {part.way for part in found.parts} else Status.FINE)


def _covers(result: _Result) -> Mapping[str, Part]:
    """Return the patches by their targets: verl-npu's patch, or upstream's own patch if verl-npu's is not applied."""
    from .model import Part, Way

    covers: dict[str, Part] = {}
    undone = set()
    for feature in result.features:
        for patch in feature:
            own, target = result.verdicts[patch.id], str(patch.target)
            state = result.state(feature) if own.state is State.PENDING else own.state
            if state is State.PENDING:
                covers[target] = Part("", "", Way.PATCHED, patch.id)
                undone |= {str(each) for each in patch.undoes}
            elif state is State.NATIVE:
                covers[target] = Part("", "", Way.NATIVE, patch.target.package)
            elif state is not State.ABSENT:
                way = Way.DRIFTED if state in BAD else Way.FALLBACK
                covers[target] = Part("", "", way, patch.id, own.reason)
    for native in result.natives:
        if native.state is State.NATIVE and native.target not in undone:
            covers[native.target] = Part("", "", Way.NATIVE, native.by)
    return covers


def _is_strict() -> bool:
    try:
        return environment.STRICT.read()
    except SettingError:  # reported together with the other invalid variables
        return False


def _judged(tree: SourceTree, lacking: Sequence[str], here: bool) -> tuple[Sequence[Judged], _Result]:
    judged, revisions, verdicts, natives = judged_patches(bundles(), tree)
    features = [feature for one in judged for feature in one.bundle.features]
    verdicts = {**verdicts, **_not_loaded(verdicts)} if here else verdicts
    wrong = [error for _unused, error in wrong_settings()]
    undeclared = [error for one in judged for error in (*one.bundle.errors, one.error) if error is not None]
    lacks = _rollout_lacks()
    strange = strange_files(judged[0].bundle)
    problem = software.problem()
    return judged, _Result(features, revisions, verdicts, natives, problem, lacks, lacking, wrong, undeclared, strange)


def _not_loaded(verdicts: Mapping[str, Verdict]) -> Mapping[str, Verdict]:
    """Return the verdicts on the patches that a job in this environment does not load."""
    reached = {patch.id for bundle in bundles(installed=True) for feature in bundle.features for patch in feature}
    absent = Verdict(State.ABSENT, "the package that it patches is not installed here")
    return {id: absent for id, one in verdicts.items() if id not in reached and one.state is not State.ABSENT}


def judged_patches(
    brought: Sequence[Bundle], tree: SourceTree
) -> tuple[Sequence[Judged], Mapping[str, Revision], Mapping[str, Verdict], Sequence[Native]]:
    """Judge the patches of verl-npu and of other distributions.

    Return four things: the result for each bundle of features, the revision of each upstream by its name, the verdict
    on each patch by its id, and the patches that upstream applies itself.
    """
    judged = list(judge_bundles(brought, tree))
    features = [feature for one in judged for feature in one.bundle.features]
    revisions = {name: revision for one in reversed(judged) for name, revision in one.revisions.items()}
    verdicts = {id: verdict for one in judged for id, verdict in one.verdicts.items()}
    ours = {str(patch.target) for feature in features for patch in feature if verdicts[patch.id].state in _COVERING}
    whole = upstreams.with_installed(tree, [module.name.partition(".")[0] for module in PATCH_MODULES])
    whole = upstreams.with_installed(whole, patched_packages(PATCH_MODULES, whole))
    natives = judge_natives(PATCH_MODULES, whole, ours)
    left_out = policy().disable
    switched_off = {
        patch.id: Verdict(State.OFF, _("by {disable}").format(disable=environment.DISABLE.name))
        for feature in features
        if feature.name in left_out
        for patch in feature
    }
    return judged, revisions, {**confirmed(verdicts, natives), **switched_off}, natives


def strange_files(own: Bundle) -> list[str]:
    """Return the patch modules and lock files that differ from the files in verl-npu's wheel. In a checkout, return an
    empty list."""
    try:
        brought = metadata.distribution("verl-npu")
    except metadata.PackageNotFoundError:
        return []
    known = {str(brought.locate_file(file)): file.hash for file in brought.files or ()}
    if str(Path(__file__)) not in known:
        return []
    modules = {patch.implementation.__module__ for feature in own.features for patch in feature}
    files = {str(sys.modules[name].__file__) for name in modules}
    files |= {str(path) for path in own.locks.glob("*/*/lock.json")}
    return sorted(file for file in files if _record_hash(Path(file)) != getattr(known.get(file), "value", ""))


def _record_hash(file: Path) -> str:
    """Return a file's SHA-256 in the form that a wheel's RECORD has."""
    return base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")


def _content(result: _Result) -> dict[str, object]:
    return {
        "revision": result.revisions[UPSTREAMS[0].name].as_json(),
        "upstreams": {name: revision.as_json() for name, revision in result.revisions.items()},
        "features": [
            {
                "name": feature.name,
                "owner": feature.owner,
                "state": str(result.state(feature)),
                "patches": [
                    {
                        "id": patch.id,
                        "target": str(patch.target),
                        "state": str(result.verdicts[patch.id].state),
                        "reason": result.verdicts[patch.id].reason,
                    }
                    for patch in feature
                ],
            }
            for feature in result.features
        ],
        "natives": [native.as_json() for native in result.natives],
        "lacking": list(result.lacking),
        "wrong_variables": [str(error) for error in result.wrong],
        "wrong_declarations": [str(error) for error in result.undeclared],
        "strange_files": list(result.strange),
        "torch_npu": None if result.problem is None else str(result.problem),
        "engine_names": [lack.as_json() for lack in result.lacks],
    }


def _print(result: _Result, verbose: bool) -> None:
    for error in (*result.wrong, *result.undeclared):
        terminal.paragraph(str(error), label=terminal.styled("error  ", "red"), indent="  ")
    if result.strange:
        terminal.paragraph(
            _(
                "Somebody changed these files of the installed verl-npu, and reinstalling verl-npu undoes the "
                "changes: {files}. Move your own patches into your own distribution (docs/writing-a-patch.md)."
            ).format(files=_(", ").join(result.strange)),
            label=_("note: "),
            indent="  ",
        )
    if result.wrong or result.undeclared or result.strange:
        terminal.echo()
    terminal.trouble(result.problem)
    _print_revisions(result.revisions, verbose)
    upstreams.print_missing(result.lacking)
    terminal.echo()
    states = [result.state(feature) for feature in result.features]
    rows = [(str(f), str(s), _feature_summary(f, result)) for f, s in zip(result.features, states, strict=True)]
    terminal.table(rows, [colour(state) for state in states])
    notable = {feature.name: _notable(feature, result) for feature in result.features}
    if not verbose and any(notable.values()):
        terminal.echo()
    for feature in result.features:
        shown = list(feature) if verbose else notable[feature.name]
        if verbose:
            terminal.echo()
            terminal.paragraph(_("{feature}: {summary}").format(feature=feature, summary=feature.summary))
        for patch in shown:
            _print_patch(patch, result.verdicts[patch.id], result.state(feature))
    _print_natives(result.natives, verbose)
    _print_lacks(result.lacks)
    terminal.echo()
    present = {*states, *(verdict.state for verdict in result.verdicts.values())}
    meanings = [(str(state), meaning) for state, meaning in _MEANING.items() if state in present]
    terminal.table(meanings, [""] * len(meanings), indent="  ")
    terminal.echo()
    _print_advice(result, verbose)


def _print_model(found: Model) -> None:
    terminal.echo()
    source = found.source or _("the default configuration of {family}").format(family=found.family)
    terminal.paragraph(
        _("{architecture}, which transformers {version} builds from {source}:").format(
            architecture=found.architecture, version=found.transformers, source=source
        )
    )
    terminal.echo()
    names = [part.place.partition(":")[2] for part in found.parts]
    rows = []
    for part, name in zip(found.parts, names, strict=True):
        by = _("{place}, by {by}").format(place=name, by=part.by) if part.by and name else name
        text = _("{place}: {reason}").format(place=by, reason=part.reason) if by and part.reason else by
        rows.append((part.operator, str(part.way), text or part.reason))
    colours = {"fall-back": "yellow", "refused": "red", "drifted": "red", "absent": "dim"}
    terminal.table(rows, [colours.get(part.way, "green") for part in found.parts])
    silent = [name for part, name in zip(found.parts, names, strict=True) if part.silent]
    if silent:
        terminal.echo()
        terminal.paragraph(
            _("A job's log says nothing about {names}.").format(names=_(", ").join(silent)),
            label=_("note: "),
            indent="  ",
        )


def _notable(feature: Feature, result: _Result) -> list[Patch]:
    """Return the patches of a feature that the user must know about."""
    if result.state(feature) is State.OFF:
        return []
    verdicts = {patch: result.verdicts[patch.id] for patch in feature}
    return [patch for patch, verdict in verdicts.items() if verdict.state not in QUIET or verdict.bypassed]


def _print_revisions(revisions: Mapping[str, Revision], verbose: bool) -> None:
    terminal.paragraph(
        _(", ").join(
            _("{name} {revision}").format(name=name, revision=_short_revision(revision))
            for name, revision in revisions.items()
        )
    )
    for name, revision in revisions.items():
        if not revision.differs:
            continue
        count = len(revision.differs)
        terminal.paragraph(
            ngettext(
                "This {name} has no lock. The nearest revision with a lock is {nearest_pin}; {count} target or answer "
                "differs from it.",
                "This {name} has no lock. The nearest revision with a lock is {nearest_pin}; {count} targets or "
                "answers differ from it.",
                count,
            ).format(name=name, nearest_pin=revision.nearest_pin, count=count)
        )
        for target in revision.differs if verbose else ():
            terminal.line("  ", target)


def _short_revision(revision: Revision) -> str:
    if not revision.nearest_pin:
        return _("not found")
    return revision.nearest_pin if revision.exact else _("near {nearest_pin}").format(nearest_pin=revision.nearest_pin)


def _feature_summary(feature: Feature, result: _Result) -> str:
    counts = Counter(result.verdicts[patch.id].state for patch in feature)
    total = len(feature)
    if counts[State.OFF]:
        return _("switched off by {disable}").format(disable=environment.DISABLE.name)
    if counts[State.FAILED]:
        return _("not applied")
    if counts[State.DRIFTED]:
        return _("not applied, because {counts} of its {total} patches drifted").format(
            counts=counts[State.DRIFTED], total=total
        )
    fit = counts[State.PENDING]
    others = (State.NATIVE, State.FAILED, State.ABSENT)
    rest = [f"{counts[state]} {state}" for state in others if counts[state]]
    fits = ngettext("{fit} patch fits", "{fit} patches fit", fit).format(fit=fit)
    return _(", ").join([fits if fit else _("nothing to patch"), *rest])


def _print_natives(natives: Sequence[Native], verbose: bool) -> None:
    """Print the number of upstream's own patches that have no target. With `verbose`, print all of upstream's own
    patches."""
    for module in dict.fromkeys(native.by for native in natives):
        own = [native for native in natives if native.by == module]
        lost = sum(native.state in BAD for native in own)
        if not lost and not verbose:
            continue
        terminal.echo()
        missing = ngettext("{lost} of them does not exist", "{lost} of them do not exist", lost)
        reached = missing.format(lost=lost) if lost else _("all of them exist")
        terminal.paragraph(
            ngettext(
                "Besides verl-npu's patches, verl's own module {module} patches {count} target; {reached}",
                "Besides verl-npu's patches, verl's own module {module} patches {count} targets; {reached}",
                len(own),
            ).format(module=module, count=len(own), reached=reached)
            + (_(".") if verbose else _(": see -v."))
        )
        for native in own if verbose else ():
            terminal.line("  ", native.target, "  ", terminal.styled(str(native.state), colour(native.state)))
            terminal.paragraph(native.reason, indent="    ")


def _print_patch(patch: Patch, verdict: Verdict, whole: State) -> None:
    left_out = _(", left out with its feature") if verdict.state is State.PENDING and whole in BAD else ""
    terminal.line("  ", patch.id, "  ", terminal.styled(str(verdict.state), colour(verdict.state)), left_out)
    terminal.line("    ", str(patch.target))
    terminal.paragraph(verdict.reason, indent="    ")


def _print_advice(result: _Result, verbose: bool) -> None:
    if environment.SWITCH.text().lower() == "off":
        terminal.paragraph(
            _("{switch}=off is set here, so a job in this shell patches nothing.").format(
                switch=environment.SWITCH.name
            )
        )
    refused = [feature.name for feature in result.features if result.state(feature) is State.DRIFTED]
    if refused:
        terminal.paragraph(
            _(
                "`verl-npu check --diff` shows what changed. Install a verl that has a lock, or a newer "
                "verl-npu; VERL_NPU_FORCE={refused} applies the patches regardless, at your own risk."
            ).format(refused=",".join(refused))
        )
    elif not verbose:
        terminal.echo(_("`verl-npu check -v` shows every patch."))


def _diffs(judged: Sequence[Judged], result: _Result) -> list[str]:
    texts = []
    for one in judged:
        owner = owners(one.bundle.upstreams)
        for patch in (patch for feature in one.bundle.features for patch in feature):
            name = owner[patch.target.package]
            pin = one.revisions[name].nearest_pin if name in one.revisions else ""
            lock = next((lock for lock in one.locks.get(name, ()) if lock.pin == pin), None)
            if result.verdicts[patch.id].state is State.DRIFTED and lock is not None:
                texts.append(drift_diff(patch.target, pin, lock.targets.get(patch.target, Record()), one.tree))
    return texts


_DISTRIBUTIONS = {name.package: name.package.replace("_", "-") for name in NAMES}


def _rollout_lacks() -> Sequence[Lack]:
    """Find the names that verl-npu needs and that this environment's vLLM and vllm-ascend lack. Neither package is
    imported."""
    releases = _releases()
    return list(lacks(NAMES, SourceTree.installed(list(releases)), releases)) if releases else []


def _print_lacks(found: Sequence[Lack]) -> None:
    """Print the missing names, each with the consequence. Print nothing if no name is missing."""
    for package, distribution in _DISTRIBUTIONS.items():
        own = [lack for lack in found if lack.name.package == package]
        if not own:
            continue
        terminal.echo()
        terminal.paragraph(
            ngettext(
                "The installed {distribution} {release} lacks {count} name that verl-npu relies on:",
                "The installed {distribution} {release} lacks {count} names that verl-npu relies on:",
                len(own),
            ).format(distribution=distribution, release=own[0].release, count=len(own))
        )
        for lack in own:
            terminal.line("  ", lack.name.title)
            terminal.paragraph(
                _("Found {found}. Without it, {absent}.").format(found=lack.found, absent=lack.name.absent),
                indent="    ",
            )


def _releases() -> Mapping[str, str]:
    """Return the versions of the installed packages, without builds whose version is `dev`."""
    from packaging.version import InvalidVersion, Version

    found = {}
    for package, distribution in _DISTRIBUTIONS.items():
        try:
            found[package] = str(Version(metadata.version(distribution)))
        except (metadata.PackageNotFoundError, InvalidVersion):
            continue
    return found
