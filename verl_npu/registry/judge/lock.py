"""Locks: per upstream and pin, what each target looked like there; and which pin a source tree is, judged by them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import LockError
from ..patch import Patch
from ..source.definition import NORMALISER
from ..source.named import Collaborator
from ..source.probe import Atom
from ..source.tree import SourceTree, Target, is_there
from ..state import Standing, UpstreamEntry

SCHEMA = 5
FILE_NAME = "lock.json"
THERE = "there"
"""What a lock says of a subject that its pin has."""


@dataclass(frozen=True, slots=True)
class Record:
    """A target as it stood at the pin; all empty where it was not defined there."""

    kind: str = ""
    signature: str = ""
    ends: tuple[str, ...] = ()
    """What its name is bound to at the end of its module, one way after the other."""
    fingerprint: str = ""
    words: str = field(default="", compare=False)
    """A fingerprint that leaves out what is only words; only a lock has it, as it is seldom asked for."""
    outline: tuple[str, ...] = field(default=(), compare=False)
    """The marks of its statements: upstream's code is not ours to keep, and this is enough to show what changed."""

    @classmethod
    def of(cls, target: Target, tree: SourceTree) -> Record:
        """What a lock keeps of a target."""
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
        """Read the plain form that a lock has. Raises KeyError where a part is missing."""
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
    """One upstream at one pin."""

    upstream: str
    pin: str
    revision: str
    targets: Mapping[Target, Record]
    patches: Mapping[str, Standing]
    files: Mapping[str, str]
    """SHA-256 of each module and file of the configuration on which any answer depends: a tree in which they are the
    same is that pin, and need not be parsed."""
    answers: Mapping[str, bool]
    """What the source answers to each question that a patch asks about this upstream, by the question's id."""
    subjects: Mapping[str, str]
    """Of each target, and of all else that is asked about: `there`, or what surrounds the place where it is not."""
    uses: Mapping[str, str]
    """What stands for each collaborator of a patch; empty if that is not what the patch uses."""
    forms: Mapping[str, str]
    """Of what is asked about and is there, a hash of it with all that it calls beside it."""
    sites: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """From where each target is reached: the how each site uses it, by its name. See `source.sites`."""


def collaborators(patches: Iterable[Patch], packages: Collection[str]) -> list[Collaborator]:
    """Return what patches use of some packages, each once."""
    every = {use.text: use for patch in patches for use in patch.uses if use.package in packages}
    return list(every.values())


def recorded(use: Collaborator, tree: SourceTree) -> str:
    """Return what a lock keeps of a collaborator."""
    from ..source.used import find

    found = find(use, tree)
    return found.what if found.fits else ""


def read_lock(path: Path) -> Lock:
    """Read one lock. Raises LockError where the file is damaged or of another schema."""
    try:
        content = json.loads(path.read_text())
        versions = (content["schema"], content["normaliser"])
        if versions != (SCHEMA, NORMALISER):
            raise LockError(
                subject=str(path),
                expected=f"schema {SCHEMA}, normaliser {NORMALISER}",
                found=f"schema {versions[0]}, normaliser {versions[1]}",
                fix="write the lock anew",
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
        raise LockError(
            subject=str(path),
            expected="a lock file",
            found=f"{type(error).__name__}: {error}",
            fix="write the lock anew, or install again the package that it came with",
        ) from error


def read_locks(folder: Path, upstream: str) -> tuple[Lock, ...]:
    """All locks of `upstream` below `folder`, by pin. Raises LockError if there is no such folder: no pin at all would
    read as an upstream that drifted."""
    if not folder.is_dir():
        raise LockError(
            subject=str(folder),
            expected="the folder of locks that comes with the package",
            found="no such folder",
            fix="write a lock into it, or install the package with pip; it cannot be run from inside a zip file",
        )
    return tuple(read_lock(path) for path in sorted((folder / upstream).glob(f"*/{FILE_NAME}")))


@dataclass(frozen=True, slots=True)
class Revision:
    """The pin that a tree is, or is nearest to."""

    nearest_pin: str
    exact: bool
    differs: tuple[str, ...]
    """The targets that are not as the nearest pin has them, what else is not there as it is at that pin, the questions
    that have another answer, and the collaborators of which something else stands there."""

    def as_json(self) -> UpstreamEntry:
        """The plain form for manifests and commands."""
        return {"nearest_pin": self.nearest_pin, "exact": self.exact, "differs": list(self.differs)}

    def __str__(self) -> str:
        if self.exact:
            return self.nearest_pin
        count = f"{len(self.differs)} difference(s)" if self.differs else "nothing that is used of it differs"
        return f"nearest {self.nearest_pin}, {count}" if self.nearest_pin else "not found"


def identify(
    tree: SourceTree, locks: Sequence[Lock], atoms: Iterable[Atom], uses: Iterable[Collaborator], first: str
) -> tuple[Revision, Lock | None]:
    """Find the pin that `tree` is, or the one that it shares most targets with.

    It is that very pin if every file on which an answer depends is the same: what a lock says is believed for no other
    tree. If only something else in these files differs, it is near, and nothing is different. Packages that are not in
    the tree do not count: a wheel may leave out what lies beside it in a checkout. `first` is the upstream's first
    package, which is never another one of the same name.
    """
    # Hashing bytes is far cheaper than parsing: the usual case, an untouched release, ends here.
    same_files = [lock for lock in locks if lock.files and _same_files(tree, lock, first)]
    if same_files:
        # Releases may share every file that matters here; of these, the one that the tree calls itself is meant.
        named = (lock for lock in same_files if len(same_files) > 1 and _calls_itself(tree, lock))
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
    # The answer to a question about something that is gone is no. That may well be what the pin answers, too.
    subjects = sorted({atom.subject for atom in asked.values()} - {*differs})
    differs += [s for s in subjects if is_there(s, tree) != (nearest.subjects.get(s) == THERE)]
    differs += sorted(str(atom) for id, atom in asked.items() if nearest.answers.get(id) != atom.holds(tree))
    present = sorted((use for use in uses if use.decides and tree.has_part(use.text, first)), key=str)
    differs += [use.text for use in present if nearest.uses.get(use.text) != recorded(use, tree)]
    return Revision(nearest.pin, False, tuple(differs)), nearest


def _likeness(tree: SourceTree, observed: Mapping[Target, Record], lock: Lock) -> tuple[int, float, int]:
    """How many targets are as in `lock`; which share of the others' statements is; how many files are the same."""
    # Imported here: an untouched release is told by its files alone.
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


def _calls_itself(tree: SourceTree, lock: Lock) -> bool:
    packages = {target.package for target in lock.targets}
    return any(tree.declared_version(package) == lock.pin.removeprefix("v") for package in packages)
