"""A walk over an upstream's history: which commits are judged, and which of them changed a verdict."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .objects import GitError

__all__ = ["Change", "Commit", "Judge", "Said", "Walk", "commits", "walk"]

Said = tuple[str, str]
"""The state of a patch, and the reason."""
Judge = Callable[[str], Mapping[str, Said]]


@dataclass(frozen=True)
class Commit:
    """One commit of the main line."""

    name: str
    date: str
    subject: str
    files: frozenset[str]
    """What it changed, added or deleted."""


@dataclass(frozen=True)
class Change:
    """A verdict that a commit changed."""

    commit: Commit
    patch: str
    before: Said
    after: Said


@dataclass(frozen=True)
class Walk:
    """What came of a walk."""

    commits: int
    touching: int
    """Commits that touch a file that a patch is about."""
    sampled: int
    """Commits that touch none, and were judged all the same."""
    judged: int
    """All that were judged, with those in between that were needed to find the cause of a change."""
    changes: Sequence[Change]
    first: Mapping[str, Said]
    last: Mapping[str, Said]


def commits(repository: Path, first: str, last: str) -> list[Commit]:
    """Return the commits of the main line after `first` up to `last`, oldest first. Raises GitError."""
    command = ["git", "-C", str(repository), "log", "--first-parent", "--reverse", "--no-renames", "--name-only"]
    command += ["-m", "-z", "--format=%x01%H%x02%cs%x02%s%x02", f"{first}..{last}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitError(done.stderr.strip())
    return [_commit(entry) for entry in done.stdout.split("\x01")[1:]]


def _commit(entry: str) -> Commit:
    name, date, subject, files = entry.split("\x02")
    return Commit(name, date, subject, frozenset(filter(None, (file.strip("\n") for file in files.split("\0")))))


def walk(line: Sequence[Commit], first: str, judge: Judge, files: Collection[str], sample: int) -> Walk:
    """Judge `first`, each commit that touches one of `files`, and `sample` of the others: always the same ones."""
    touching = [n for n, commit in enumerate(line) if commit.files & set(files)]
    others = sorted(set(range(len(line))) - set(touching))
    sampled = random.Random(len(line)).sample(others, min(sample, len(others)))
    said: dict[int, Mapping[str, Said]] = {-1: judge(first)}

    def judged(number: int) -> Mapping[str, Said]:
        if number not in said:
            said[number] = judge(line[number].name)
        return said[number]

    changes: list[Change] = []
    at = -1
    for number in sorted({*touching, *sampled, len(line) - 1}):
        changes += _between(line, at, number, judged)
        at = number
    return Walk(len(line), len(touching), len(sampled), len(said), changes, said[-1], judged(len(line) - 1))


def _between(
    line: Sequence[Commit], old: int, new: int, judged: Callable[[int], Mapping[str, Said]]
) -> Iterator[Change]:
    """Return the changes after one commit up to another; what lies between them is judged only if there are any."""
    before, after = judged(old), judged(new)
    differing = [patch for patch in after if before[patch][0] != after[patch][0]]
    if not differing:
        return
    if new - old == 1:
        for patch in differing:
            yield Change(line[new], patch, before[patch], after[patch])
        return
    middle = (old + new) // 2
    yield from _between(line, old, middle, judged)
    yield from _between(line, middle, new, judged)
