"""Plans a job at the commits of a range of verl, and tells which commits moved its memory, and what grew."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from verl_npu.errors import PlanError, VerlNpuError
from verl_npu.language import gettext as _

from .job import Holder
from .planning import Planned
from .verdict import FIGURE, allocated, judge

_LEAST = 10 << 20
"""The smallest number of bytes that counts as a move."""
_SETTINGS = ".yaml"
"""The ending of the files that Hydra composes a trainer's configuration from. All of them count as read."""


@dataclass(frozen=True, slots=True)
class Move:
    """A commit's change to the memory of one phase, or to the memory that verl reports. Sizes are in bytes."""

    phase: str
    before: int
    after: int
    holder: str
    """The holder that changed most, and by how much."""
    by: int


@dataclass(frozen=True, slots=True)
class Step:
    """One commit of a range."""

    commit: str
    subject: str
    planned: bool = False
    """Whether the job was planned at this commit. It is not if the commit changes no file that the job read."""
    moves: tuple[Move, ...] = ()
    error: str = ""
    """The reason why there is no plan at this commit. The next one is compared with the last plan."""


_Memory = Mapping[str, Mapping[str, int]]


def history(repository: Path, commits: str, plan: Callable[[Path], Planned]) -> Iterator[Step]:
    """Yield the commits from GOOD to BAD, oldest first. A commit is yielded as soon as its plan is finished.

    Args:
        repository: a clone of verl that contains the commits of the range. Its working tree is neither read nor
            changed.
        commits: the range, as GOOD..BAD.
        plan: makes the plan in the source tree of a commit.

    Raises:
        PlanError: git cannot resolve the range.
    """
    good, dots, bad = commits.partition("..")
    if not (good and dots and bad):
        raise _no_range(commits, _("no .. between two revisions"))
    later = _git(repository, commits, "rev-list", "--reverse", "--first-parent", f"{good}..{bad}").decode().split()
    first = _git(repository, commits, "rev-parse", "--verify", f"{good}^{{commit}}").decode().strip()
    before: _Memory = {}
    read: set[str] | None = None
    for commit in (first, *later):
        subject = _git(repository, commits, "log", "-1", "--format=%s", commit).decode().strip()
        if read is not None:
            changed = _git(repository, commits, "diff", "--name-only", "--no-renames", f"{commit}^", commit)
            if not any(name in read or name.endswith(_SETTINGS) for name in changed.decode().splitlines()):
                yield Step(commit, subject)
                continue
        # Without a plan, nobody knows what the next commit's plan reads.
        read = None
        try:
            planned, shell = _planned(repository, commits, commit, plan)
            failed = next((outcome.error for outcome in planned.outcomes if outcome.error), "")
        except VerlNpuError as error:
            failed = str(error)
        if failed:
            yield Step(commit, subject, planned=True, error=failed)
            continue
        imported = {name for outcome in planned.outcomes for name in outcome.read}
        read = {*shell, *imported} if imported else None
        memory = {FIGURE: allocated(planned), **{phase.phase: phase.holders for phase in judge(planned).phases}}
        yield Step(commit, subject, planned=True, moves=tuple(_moves(before, memory)) if before else ())
        before = memory


def _planned(
    repository: Path, commits: str, commit: str, plan: Callable[[Path], Planned]
) -> tuple[Planned, Sequence[str]]:
    """Return the plan at a commit, and the shell files of the commit that the job read."""
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as folder:
        packed = BytesIO(_git(repository, commits, "archive", commit))
        with tarfile.open(fileobj=packed) as tree:
            tree.extractall(folder, filter="data")
        planned, root = plan(Path(folder)), Path(folder).resolve()
        read = [path.resolve() for path in planned.trainer.shell_files]
        return planned, [str(path.relative_to(root)) for path in read if path.is_relative_to(root)]


def _moves(before: _Memory, after: _Memory) -> Iterator[Move]:
    for phase in dict.fromkeys((*before, *after)):
        old, new = before.get(phase, {}), after.get(phase, {})
        by = {name: new.get(name, 0) - old.get(name, 0) for name in {*old, *new} - {Holder.RESERVE.value}}
        moved = max(by, key=lambda name: abs(by[name]), default="")
        sums = [sum(size for name, size in held.items() if name in by) for held in (old, new)]
        if abs(sums[1] - sums[0]) >= _LEAST:
            yield Move(phase, sums[0], sums[1], moved, by[moved])


def _git(repository: Path, commits: str, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [
            f"git ended with status {done.returncode}"
        ]
        raise _no_range(commits, said[0][:200])
    return done.stdout


def _no_range(commits: str, found: str) -> PlanError:
    return PlanError(
        subject=f"--history {commits}",
        expected=_("two revisions of the repository in --verl, as GOOD..BAD"),
        found=found,
        fix=_(
            "specify two revisions that `git log` shows in the repository of --verl; the repository must be a "
            "full clone, not a shallow clone"
        ),
    )
