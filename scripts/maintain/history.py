"""Finds the commits in upstream's history that changed the verdict on a patch.

    python scripts/maintain/history.py --repository FOLDER [--first COMMIT] [--last COMMIT] [--sample N] [--json FILE]

The repository may be bare, and must contain the pins. The program judges every commit of the main line that touches a
file of a patch's targets, and a sample of the other commits, as `verl-npu check` does. It prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sources

from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.pins import pins
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.source.tree import Memory, SourceTree

VERL = UPSTREAMS[0]
FIRST, *_, LAST = (pin.commit for pin in pins().values() if pin.commit)
"""The first and the last commit of the main line to judge."""


class GitError(Exception):
    """The repository has no such commit, or git could not be run."""


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitError(done.stderr.strip())
    return done.stdout


class Past:
    """The source of verl at any commit of a repository. Each file is read once."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._memory = Memory(limit=400)

    def tree(self, commit: str) -> SourceTree:
        """Return the source at a commit; raise GitError if there is no such commit."""
        # Submodules are left out, because they are commits of other repositories.
        listed = [line.split() for line in _git(self._repository, "ls-tree", commit, *VERL.packages).splitlines()]
        folders = [name for _, kind, _, name in listed if kind == "tree"]
        with tempfile.NamedTemporaryFile(suffix=".zip") as packed:
            _git(self._repository, "archive", "-0", f"--output={packed.name}", commit, *folders)
            tree = SourceTree.at(Path(packed.name), VERL.packages)
        tree.memory = self._memory
        return tree


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
    """The files that it changed, added, or deleted."""


@dataclass(frozen=True)
class Change:
    """A changed verdict, and the commit that changed it."""

    commit: str
    date: str
    subject: str
    patch: str
    before: Said
    after: Said


@dataclass(frozen=True)
class Walk:
    """The result of a walk along the main line."""

    commits: int
    touching: int
    """The number of commits that touch a file of a patch's targets."""
    sampled: int
    """The number of other commits that were judged."""
    judged: int
    """The number of all judged commits, including those that were judged to find the cause of a change."""
    changes: Sequence[Change]
    first: Mapping[str, Said]
    last: Mapping[str, Said]


def commits(repository: Path, first: str, last: str) -> list[Commit]:
    """Return the commits of the main line after `first` up to `last`, oldest first; raise GitError."""
    form = (
        "--first-parent",
        "--reverse",
        "--no-renames",
        "--name-only",
        "-m",
        "-z",
        "--format=%x01%H%x02%cs%x02%s%x02",
    )
    return [_commit(entry) for entry in _git(repository, "log", *form, f"{first}..{last}").split("\x01")[1:]]


def _commit(entry: str) -> Commit:
    name, date, subject, files = entry.split("\x02")
    return Commit(name, date, subject, frozenset(filter(None, (file.strip("\n") for file in files.split("\0")))))


def walk(line: Sequence[Commit], first: str, judge: Judge, files: Collection[str], sample: int) -> Walk:
    """Judge `first`, each commit that touches one of `files`, and a fixed sample of the other commits."""
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
    """Yield the changes after one commit up to another. The commits between are judged only if a verdict differs."""
    before, after = judged(old), judged(new)
    differing = [patch for patch in after if before[patch][0] != after[patch][0]]
    if not differing:
        return
    if new - old == 1:
        for patch in differing:
            cause = line[new]
            yield Change(cause.name, cause.date, cause.subject, patch, before[patch], after[patch])
        return
    middle = (old + new) // 2
    yield from _between(line, old, middle, judged)
    yield from _between(line, middle, new, judged)


def as_markdown(walked: Walk) -> str:
    """Return the counts as Markdown. Only the JSON has the commits that changed a verdict, and the reasons."""
    causes = {change.commit for change in walked.changes}
    lines = [
        f"{walked.commits} commits, of which {walked.touching} touch a file of a patch's targets. {walked.judged} "
        f"were judged, {walked.sampled} of them a sample of the others. {len(causes)} commits changed "
        f"{len(walked.changes)} verdicts.",
        "",
        "| from | to | verdicts |",
        "|---|---|---|",
    ]
    kinds = Counter((change.before[0], change.after[0]) for change in walked.changes)
    lines += [f"| {before} | {after} | {count} |" for (before, after), count in sorted(kinds.items())]
    return "\n".join([*lines, ""])


def main() -> int:
    """Walk along the main line, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True, help="a clone of verl, bare or not")
    parser.add_argument("--first", default=FIRST, help="the commit to begin with")
    parser.add_argument("--last", default=LAST, help="the commit to end with")
    parser.add_argument("--sample", type=int, default=100, help="the number of other commits to judge (default 100)")
    parser.add_argument("--transformers", default="4.57.6", help="the version of transformers (default 4.57.6)")
    parser.add_argument("--json", type=Path, help="the file for the whole result")
    asked = parser.parse_args()

    start = time.monotonic()
    try:
        beside = SourceTree.at(sources.find("transformers", asked.transformers), ("transformers",))
        line = commits(asked.repository, asked.first, asked.last)
        found = walk(line, asked.first, _judge(Past(asked.repository), beside), _watched(), asked.sample)
    except (GitError, sources.SourceMissing, sources.DownloadFailed) as error:
        print(f"history.py: {error}", file=sys.stderr)
        return 2
    if asked.json is not None:
        asked.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    print(as_markdown(found))
    print(f"history.py: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


def _judge(past: Past, beside: SourceTree) -> Judge:
    features = load()
    locks = {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}

    def judged(commit: str) -> Mapping[str, Said]:
        tree = past.tree(commit).with_packages(beside)
        _, verdicts = judge(features, UPSTREAMS, tree, locks)
        return {id: (str(verdict.state), verdict.reason) for id, verdict in verdicts.items()}

    return judged


def _watched() -> frozenset[str]:
    """Return the files of all patches' targets."""
    locks = read_locks(locks_folder(), VERL.name)
    return frozenset(name for lock in locks for module in lock.files for name in _files(module))


def _files(module: str) -> tuple[str, ...]:
    if "/" in module:  # a configuration file
        return (module,)
    stem = module.replace(".", "/")
    return f"{stem}.py", f"{stem}/__init__.py"


if __name__ == "__main__":
    sys.exit(main())
