"""`verl-npu explain`, which explains patches and the codes that commands print."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from importlib import metadata

import click

from .. import codes
from ..errors import DeclarationError
from ..features import bundles
from ..language import gettext as _
from ..registry.judge.lock import Lock, read_locks
from ..registry.patch import Action, Bundle, Feature, Patch, owners
from . import INSTALL, terminal, upstreams
from .diff import patch_diff
from .options import complete_name, example, source_option

_LONGEST = 200
"""The longest name, in characters, that is compared with known names. The time for a comparison grows with both
lengths."""


@click.command(
    epilog=example(
        "verl-npu explain device",
        "verl-npu explain device.request_npus_not_gpus",
        "verl-npu explain verl.trainer.main_ppo:run_ppo",
        "verl-npu explain VERL_NPU_STRICT",
    )
)
@click.argument("name", shell_complete=complete_name)
@source_option("Show the change that the patch makes in this checkout or wheel of verl.")
def explain(name: str, source: str) -> None:
    """Explain a patch, a feature, or a code that a command printed.

    NAME is a patch, a patch's target (module:name), a feature, or the code of a rule, a finding, an error, or a
    variable. For a patch, the command says why the patch exists, how it works, what it changes, and what will make it
    unnecessary. For a code, the command says what is checked, what the code means, and what to do.

    Exit status: 0 if NAME was explained; 2 if there is no such name, or if the source cannot be read.
    """
    found_bundles = bundles()
    features = [feature for bundle in found_bundles for feature in bundle.features]
    feature = next((feature for feature in features if feature.name == name), None)
    if feature is not None:
        _explain_feature(feature)
        return
    found = ((p, bundle) for bundle in found_bundles for feature in bundle.features for p in feature)
    patch, bundle = next(((p, b) for p, b in found if name in (p.id, str(p.target))), (None, found_bundles[0]))
    if patch is not None:
        _explain_patch(patch, bundle, source)
        return
    known = codes.meanings()
    if name not in known:
        raise _unknown(name, features, known)
    _explain_code(name, known[name])


def _explain_code(code: str, meanings: Sequence[codes.Meaning]) -> None:
    terminal.line(terminal.styled(code, "bold"))
    for meaning in meanings:
        terminal.paragraph(_("{text}.").format(text=meaning.said_by), indent="    ", label="  ")
        for label, text in meaning.rows.items():
            terminal.paragraph(text, indent=" " * 20, label=f"    {terminal.padded(_(label), 16)}")


def _explain_feature(feature: Feature) -> None:
    terminal.paragraph(_("{feature}: {summary}").format(feature=feature, summary=feature.summary))
    for patch in feature:
        terminal.echo()
        terminal.line("  ", terminal.styled(patch.id, "bold"))
        terminal.line("    ", str(patch.target))
        terminal.paragraph(patch.why, indent="    ")
    terminal.echo()
    terminal.paragraph(_("`verl-npu explain PATCH` explains one of these patches."))


def _explain_patch(patch: Patch, bundle: Bundle, source: str) -> None:
    tree = upstreams.with_installed(upstreams.tree(source), [patch.target.package])
    standings = [f"{lock.pin} {lock.patches[patch.id]}" for lock in _locks(patch, bundle) if patch.id in lock.patches]
    rows = {
        **({_("owner"): bundle.owner} if bundle.owner else {}),
        _("target"): str(patch.target),
        _("action"): str(patch.action),
        _("why"): patch.why,
        _("how"): patch.how,
        _("link"): patch.link,
        _("retired by"): str(patch.retired_by),
        _("requires"): str(patch.requires or "nothing"),
        _("at"): _(", ").join(standings) or _("no pin has a lock of it"),
    }
    terminal.line(terminal.styled(patch.id, "bold"))
    for label, value in rows.items():
        terminal.paragraph(value, indent=" " * 14, label=f"  {terminal.padded(label, 12)}")
    terminal.echo()
    if patch.action is Action.REPLACE and not tree.nodes(patch.target):
        terminal.paragraph(
            _(
                "Your verl does not have this target, so only verl-npu's code is shown. To see a full diff, name "
                "another checkout or wheel of verl with --source."
            )
        )
    terminal.block(patch_diff(patch, tree))


def _locks(patch: Patch, bundle: Bundle) -> Sequence[Lock]:
    return read_locks(bundle.locks, owners(bundle.upstreams)[patch.target.package])


def _unknown(name: str, features: Sequence[Feature], known: Collection[str]) -> DeclarationError:
    near = _nearest(name[:_LONGEST], features, known)
    fix = (
        _("did you mean {near}?").format(near=_(" or ").join(near))
        if near
        else _("run `verl-npu check -v`, which lists all patches and features")
    )
    if not metadata.entry_points(group=codes.GROUP):
        fix = _(
            "if a command of the workbench printed this name, install the workbench: {install}; otherwise {fix}"
        ).format(install=INSTALL, fix=fix)
    return DeclarationError(
        subject="NAME",
        expected=_("the name of a patch, a target, or a feature, or a code that a verl-npu command printed"),
        found=repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"),
        fix=fix,
    )


def _nearest(name: str, features: Sequence[Feature], known: Collection[str]) -> list[str]:
    """Return up to three known names similar to `name`, best first. If `name` has a colon, they are targets. Otherwise
    they are features, patches, and codes."""
    patches = [patch for feature in features for patch in feature]
    forms = {name.lower(): name for name in (*(feature.name for feature in features), *known)}
    for patch in patches:
        own = str(patch.target) if ":" in name else patch.id
        # A patch is also found without its feature, and by the last part of its target.
        for form in (
            patch.id,
            patch.id.partition(".")[2],
            str(patch.target),
            patch.target.qualname,
            patch.target.name,
        ):
            forms.setdefault(form.lower(), own)
    close = difflib.get_close_matches(name.lower(), forms, n=8, cutoff=0.6)
    return list(dict.fromkeys(forms[form] for form in close))[:3]
