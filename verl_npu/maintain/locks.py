"""Creation of a lock, which records the source of each target at a pin in the format that `judge.lock` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..registry.judge.lock import FILE_NAME, SCHEMA, THERE, Lock, Record, collaborators, recorded
from ..registry.patch import Action, Patch, Upstream
from ..registry.source.definition import NORMALISER
from ..registry.source.probe import Probe
from ..registry.source.reader import read_body
from ..registry.source.sites import find_sites
from ..registry.source.tree import SourceTree, Target, is_there, package_of, packages_above, surroundings
from ..registry.state import Standing


def standing(patch: Patch, tree: SourceTree) -> Standing:
    """Return whether `patch` is native, absent, or needed, according to the source of a pin.

    The patch's conditions on packages outside of `tree` have no effect, because a lock covers only one upstream.
    """

    def holds(probe: Probe, *, unknown: bool) -> bool:
        answer = probe.answer(lambda atom: atom.holds(tree) if tree.covers(package_of(atom.subject)) else None)
        return unknown if answer is None else answer

    if holds(patch.retired_by, unknown=False):
        return Standing.NATIVE
    if patch.requires is not None and not holds(patch.requires, unknown=True):
        return Standing.ABSENT
    present = tree.read(patch.target.module) is not None
    if patch.action is not Action.ADD:
        present = present and bool(tree.nodes(patch.target))
    return Standing.NEEDED if present else Standing.ABSENT


def record_lock(upstream: Upstream, pin: str, revision: str, tree: SourceTree, patches: Sequence[Patch]) -> Lock:
    """Create the lock of `upstream` at `pin` from the source in `tree`.

    The lock covers the patches whose targets are in this upstream. The lock also contains the answers to all questions
    that other patches ask about this upstream.
    """
    own = [patch for patch in patches if patch.target.package in upstream.packages]
    atoms = {atom.id: atom for patch in patches for atom in patch.atoms()}
    atoms = {id: atom for id, atom in atoms.items() if package_of(atom.subject) in upstream.packages}
    subjects = {str(patch.target) for patch in own} | {atom.subject for atom in atoms.values()}
    subjects |= {patch.target.module for patch in own if patch.action is Action.ADD}
    # The answers depend on the files that are read for them. Collaborators that decide nothing are read elsewhere.
    counted = tree.fresh()
    used = collaborators(patches, upstream.packages)
    targets = sorted({patch.target for patch in own if patch.action is not Action.ADD and tree.nodes(patch.target)})
    sites = {
        str(target): {site: str(how) for site, how in find_sites(target, upstream.packages, tree).items()}
        for target in targets
    }
    # A package's `__init__` may replace a target below it.
    for target in targets:
        for module in (*packages_above(target.module), *(site.partition(":")[0] for site in sites[str(target)])):
            counted.read(module)
    lock = Lock(
        upstream=upstream.name,
        pin=pin,
        revision=revision,
        targets={patch.target: _recorded(patch.target, counted) for patch in own},
        patches={patch.id: standing(patch, counted) for patch in own},
        files={},
        answers={id: atom.holds(counted) for id, atom in atoms.items()},
        subjects={s: THERE if is_there(s, counted) else str(surroundings(s, counted)) for s in subjects},
        uses={use.text: recorded(use, counted if use.decides else tree) for use in used},
        forms={s: read_body(s, counted).form for s in sorted(subjects) if ":" in s and is_there(s, counted)},
        sites=sites,
    )
    names = sorted(name for name in counted.files if package_of(name) in upstream.packages)
    return replace(lock, files={name: tree.digest(name) or "" for name in names})


def _recorded(target: Target, tree: SourceTree) -> Record:
    return replace(Record.of(target, tree), words=tree.words(target))


def lock_path(folder: Path, upstream: str, pin: str) -> Path:
    """Return the path of a pin's lock in a folder of locks."""
    return folder / upstream / pin / FILE_NAME


def write_lock(lock: Lock, folder: Path) -> Path:
    """Write `lock` below `folder` and return its path."""
    path = lock_path(folder, lock.upstream, lock.pin)
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "normaliser": NORMALISER,
        "upstream": lock.upstream,
        "pin": lock.pin,
        "revision": lock.revision,
        "targets": {str(target): _as_json(record) for target, record in sorted(lock.targets.items())},
        "patches": {id: str(standing) for id, standing in sorted(lock.patches.items())},
        "files": dict(sorted(lock.files.items())),
        "answers": dict(sorted(lock.answers.items())),
        "subjects": dict(sorted(lock.subjects.items())),
        "uses": dict(sorted(lock.uses.items())),
        "forms": dict(sorted(lock.forms.items())),
        "sites": {target: dict(sorted(sites.items())) for target, sites in sorted(lock.sites.items()) if sites},
    }
    # A half-written lock would refuse every feature.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps(content, indent=2) + "\n")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def _as_json(record: Record) -> dict[str, Any]:
    """Return the JSON representation that `Record.from_json` reads. An outline becomes one string, so that locks are
    readable."""
    if not record.fingerprint:
        return {}
    return {
        "kind": record.kind,
        "signature": record.signature,
        "ends": list(record.ends),
        "fingerprint": record.fingerprint,
        "words": record.words,
        "outline": " ".join(record.outline),
    }
