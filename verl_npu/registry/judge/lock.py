"""Locks, which record an upstream's targets at a pin, and the search for the pin that is nearest to a source tree."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DeclarationError
from ..patch import Patch
from ..source.definition import NORMALISER
from ..source.named import Collaborator
from ..source.probe import Atom
from ..source.tree import SourceTree, Target, is_there
from ..state import Standing, UpstreamEntry

SCHEMA = 5
FILE_NAME = "lock.json"
THERE = "there"
"""The text in a lock for a subject that exists at its pin."""


@dataclass(frozen=True, slots=True)
class Record:
    """A description of a target at a pin or in a source tree. All fields are empty if the pin or the source tree does
    not define the target."""

    kind: str = ""
    signature: str = ""
    ends: tuple[str, ...] = ()
    """What the target's name may be bound to at the end of its module, with one entry for each possibility."""
    fingerprint: str = ""
    words: str = field(default="", compare=False)
    """A fingerprint that does not depend on wording, such as log messages or names of local variables. Only the record
    in a lock has this fingerprint, because it is seldom needed."""
    outline: tuple[str, ...] = field(default=(), compare=False)
    """A mark for each statement. The marks show what has changed, without a copy of upstream's code."""

    @classmethod
    def of(cls, target: Target, tree: SourceTree) -> Record:
        """Create the record of a target in a source tree."""
        definition = tree.definition(target)
        if definition is None:
            return cls()
        from ..source.reader import ends_of

        return cls(
            kind=str(definition.kind),
            signature=definition.signature,
            ends=ends_of(target, tree),
            fingerprint=definition.fingerprint,
            outline=definition.outline,
        )

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Record:
        """Create a record from its JSON in a lock. Raises KeyError if a key is missing."""
        if not plain:
            return cls()
        return cls(
            kind=plain["kind"],
            signature=plain["signature"],
            ends=tuple(plain["ends"]),
            fingerprint=plain["fingerprint"],
            words=plain["words"],
            outline=tuple(plain["outline"].split()),
        )


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of one upstream at one pin."""

    upstream: str
    pin: str
    revision: str
    targets: Mapping[Target, Record]
    patches: Mapping[str, Standing]
    files: Mapping[str, str]
    """The SHA-256 of each module and configuration file that an answer depends on. A source tree with the same files
    is this pin, and need not be parsed."""
    answers: Mapping[str, bool]
    """The answers to all questions that patches ask about this upstream, by the id of the question."""
    subjects: Mapping[str, str]
    """All targets and all subjects of questions. The value is `there`, or describes the place where the subject is
    missing."""
    uses: Mapping[str, str]
    """The definition of each collaborator of a patch. Empty if it is not what the patch uses."""
    forms: Mapping[str, str]
    """For each existing subject of a question, a hash of its code and of all code in its module that it calls."""
    sites: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each target, the sites that use it, and how each site uses it. See `source.sites`."""


def collaborators(patches: Iterable[Patch], packages: Collection[str]) -> list[Collaborator]:
    """Return the collaborators (the upstream objects that the patches' code uses) that belong to these packages,
    without duplicates."""
    every = {use.text: use for patch in patches for use in patch.uses if use.package in packages}
    return list(every.values())


def recorded(use: Collaborator, tree: SourceTree) -> str:
    """Return a collaborator's definition in the format used in locks, or an empty string if the definition is not what
    the patch needs."""
    from ..source.used import find

    found = find(use, tree)
    return found.what if found.fits else ""


def read_lock(path: Path) -> Lock:
    """Read a lock file. Raises DeclarationError if the file is damaged or has an unsupported schema."""
    try:
        content = json.loads(path.read_text())
        versions = (content["schema"], content["normaliser"])
        if versions != (SCHEMA, NORMALISER):
            raise DeclarationError(
                subject=str(path),
                expected=f"a lock with the schema {SCHEMA} and the normaliser {NORMALISER}",
                found=f"schema {versions[0]}, normaliser {versions[1]}",
                fix="regenerate the lock, or reinstall the package that contains it",
            )
        return Lock(
            upstream=content["upstream"],
            pin=content["pin"],
            revision=content["revision"],
            targets={Target.parse(target): Record.from_json(record) for target, record in content["targets"].items()},
            patches={id: Standing(standing) for id, standing in content["patches"].items()},
            files=content["files"],
            answers=content["answers"],
            subjects=content["subjects"],
            uses=content["uses"],
            forms=content["forms"],
            sites=content["sites"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeclarationError(
            subject=str(path),
            found=f"this lock cannot be read: {type(error).__name__}: {error}",
            fix="regenerate the lock, or reinstall the package that contains it",
        ) from error


def read_locks(folder: Path, upstream: str) -> tuple[Lock, ...]:
    """Return all locks of `upstream` below `folder`, sorted by pin.

    Raises DeclarationError if the folder does not exist, because without any pin, every upstream would seem to have
    drifted.
    """
    if not folder.is_dir():
        raise DeclarationError(
            subject=str(folder),
            found="the folder with the package's locks does not exist",
            fix="install the package with pip (it cannot run from inside a zip file), or generate a lock in this "
            "folder",
        )
    return tuple(read_lock(path) for path in sorted((folder / upstream).glob(f"*/{FILE_NAME}")))


@dataclass(frozen=True, slots=True)
class Revision:
    """The pin that is identical to a source tree, or else the nearest one."""

    nearest_pin: str
    exact: bool
    differs: tuple[str, ...]
    """Everything that differs from the nearest pin: targets, other subjects that exist only on one side, answers to
    questions, and collaborators."""

    def as_json(self) -> UpstreamEntry:
        """Return the JSON representation that manifests contain and commands print."""
        return {"nearest_pin": self.nearest_pin, "exact": self.exact, "differs": list(self.differs)}

    def __str__(self) -> str:
        if self.exact:
            return self.nearest_pin
        if not self.nearest_pin:
            return "not found"
        count = len(self.differs)
        said = "no difference in what is used" if not count else f"{count} difference{'s' * (count > 1)}"
        return f"nearest {self.nearest_pin}, {said}"


def identify(
    tree: SourceTree, locks: Sequence[Lock], atoms: Iterable[Atom], uses: Iterable[Collaborator], first: str
) -> tuple[Revision, Lock | None]:
    """Find the pin that is identical to `tree`. If there is none, find the pin that shares the most targets with
    `tree`.

    A pin is identical if every file used to answer the patches' questions is the same at the pin and in `tree`. The
    lock's answers are used only for an identical pin. For any other pin, the result lists the targets and answers that
    differ, so the list is empty if the files differ only elsewhere. Packages that are not in `tree` are ignored,
    because a wheel may omit packages that a checkout has. `first` is the first package of the upstream, and shows
    where the upstream is installed. A package in another folder may be unrelated, even if it has the name of an
    upstream package.
    """
    # Hashing bytes is far cheaper than parsing, and the usual case, an unmodified release, ends here.
    same_files = [lock for lock in locks if lock.files and _same_files(tree, lock, first)]
    if same_files:
        # Releases may share every file that matters here; prefer the one whose version the tree declares.
        named = (lock for lock in same_files if len(same_files) > 1 and _has_version_of(tree, lock))
        lock = next(named, same_files[0])
        return Revision(lock.pin, True, ()), lock
    targets = {target for lock in locks for target in lock.targets if tree.has_part(target.module, first)}
    observed = {target: Record.of(target, tree) for target in targets}
    nearest = max(locks, key=lambda lock: _likeness(tree, observed, lock), default=None)
    if nearest is None:
        return Revision("", False, ()), None
    differs = [
        str(target)
        for target, record in sorted(nearest.targets.items())
        if target in observed and observed[target] != record
    ]
    asked = {atom.id: atom for atom in atoms if tree.has_part(atom.subject, first)}
    # A question about a missing subject is answered with no, which may well be the pin's answer, too.
    subjects = sorted({atom.subject for atom in asked.values()} - {*differs})
    differs += [s for s in subjects if is_there(s, tree) != (nearest.subjects.get(s) == THERE)]
    differs += sorted(str(atom) for id, atom in asked.items() if nearest.answers.get(id) != atom.holds(tree))
    present = sorted((use for use in uses if use.decides and tree.has_part(use.text, first)), key=str)
    differs += [use.text for use in present if nearest.uses.get(use.text) != recorded(use, tree)]
    return Revision(nearest.pin, False, tuple(differs)), nearest


def _likeness(tree: SourceTree, observed: Mapping[Target, Record], lock: Lock) -> tuple[int, float, int]:
    """Return three numbers: the targets that are the same as in `lock`, the share of statements that are the same in
    the other targets, and the files that are the same."""
    # Imported here, because the files alone identify an unmodified release.
    from ..source.moved import similarity

    same, share = 0, 0.0
    for target, record in lock.targets.items():
        found = observed.get(target)
        if found == record:
            same += 1
        elif found is not None:
            share += similarity(found.outline, record.outline)
    return same, share, sum((tree.digest(module) or "") == digest for module, digest in lock.files.items())


def _same_files(tree: SourceTree, lock: Lock, first: str) -> bool:
    present = {module: digest for module, digest in lock.files.items() if tree.has_part(module, first)}
    return bool(present) and all((tree.digest(module) or "") == digest for module, digest in present.items())


def _has_version_of(tree: SourceTree, lock: Lock) -> bool:
    packages = {target.package for target in lock.targets}
    return any(tree.declared_version(package) == lock.pin.removeprefix("v") for package in packages)
