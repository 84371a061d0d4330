"""Which targets a commit took away, where they are proposed to have gone, and what git says of their files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.registry.judge.drift import propose
from verl_npu.registry.judge.lock import record_lock
from verl_npu.registry.patch import Patch, Upstream
from verl_npu.registry.source.lookup import is_there
from verl_npu.registry.source.tree import SourceTree

from .objects import GitError

__all__ = ["Move", "moves"]


@dataclass(frozen=True)
class Move:
    """A target that is there before, and not after."""

    old: str
    new: str
    """The commits, or pins, between which it went."""
    target: str
    proposed: str
    """Where it went, as it seems; empty if nothing is like it."""
    likeness: float
    renamed: str
    """The same name in what git takes for the same file under another name; empty if there is none."""
    taken: str
    """The patch that was written for the place that is proposed, when upstream had moved; empty if there is none."""

    @property
    def shown(self) -> str:
        """What shows that the proposal is right; empty if nothing does, so that it has to be read."""
        if self.proposed and self.proposed == self.renamed:
            return "git's rename"
        return f"`{self.taken}`" if self.taken else ""


def moves(
    steps: Sequence[tuple[str, str]],
    tree: Callable[[str], SourceTree],
    repository: Path,
    patches: Sequence[Patch],
    upstream: Upstream,
) -> Iterator[Move]:
    """Return what went between each two commits, as a maintainer sees it who has a lock of the first alone."""
    own = {str(patch.target): patch for patch in patches if patch.target.package in upstream.packages}
    for old, new in steps:
        before, after = tree(old), tree(new)
        gone = [target for target in own if is_there(target, before) and not is_there(target, after)]
        if not gone:
            continue
        lock = record_lock(upstream, old, old, before, patches)
        found = propose(patches, upstream, after, [lock])
        renames = _renames(repository, old, new)
        for target in gone:
            proposal = found.get(own[target].id)
            module, _, qualname = target.partition(":")
            file = renames.get(module, "")
            yield Move(
                old=old,
                new=new,
                target=target,
                proposed=str(proposal.target) if proposal else "",
                likeness=proposal.likeness if proposal else 0.0,
                renamed=f"{file}:{qualname}" if file and is_there(f"{file}:{qualname}", after) else "",
                taken=proposal.taken if proposal else "",
            )


def _renames(repository: Path, old: str, new: str) -> Mapping[str, str]:
    """Return the modules that git takes for renamed between two commits."""
    command = ["git", "-C", str(repository), "diff", "--name-status", "-M40%", "--diff-filter=R", "-l0", old, new]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GitError(done.stderr.strip())
    pairs = [line.split("\t")[1:] for line in done.stdout.splitlines()]
    return {_module(before): _module(after) for before, after in pairs if before.endswith(".py")}


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
