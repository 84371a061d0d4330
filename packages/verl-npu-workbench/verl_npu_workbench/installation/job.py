"""A training job on several machines that KubeRay and Ascend's scheduler accept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from .container import FILES, SHARED_MEMORY, Container

_LONGEST_NAME = 47  # KubeRay appends to the name and refuses longer ones: MaxRayJobNameLength in utils/constant.go.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Claim:
    """A volume, shared by all machines, that holds models, data, and checkpoints."""

    name: str
    """The name of the PersistentVolumeClaim."""
    path: str
    """The mount path of the volume."""

    @property
    def volume(self) -> str:
        """The name of the volume in a pod."""
        return f"claim-{self.name}"

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Parse `NAME:/path`. Raises CommandError if the text does not have this format."""
        name, _unused, path = text.partition(":")
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or not path.startswith("/"):
            raise CommandError(
                subject=f"--claim {text}",
                expected=_(
                    "NAME:/PATH, where NAME is the name of a PersistentVolumeClaim and /PATH is its mount path"
                ),
                found=repr(text),
                fix=_("run verl-npu setup --help to see the syntax"),
            )
        return cls(name, path)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job on several machines."""

    container: Container
    nodes: int
    command: tuple[str, ...]
    name: str
    queue: str
    claims: tuple[Claim, ...] = ()
    interface: str = ""
    """The network interface that HCCL and Gloo use on all machines. If it is empty, they choose one themselves."""


def job(
    made: Container,
    nodes: int,
    command: Sequence[str],
    *,
    name: str,
    queue: str,
    claims: Sequence[Claim] = (),
    interface: str = "",
) -> Job:
    """Return a job after validating it against the cluster's rules.

    Raises:
        CommandError: a name is invalid, there is no command, two volumes have the same path, or Ascend's scheduler
            does not accept the number of NPUs for a pod.
    """
    _check_name(name)
    _check_queue(queue)
    _check_paths(claims)
    if not command:
        raise CommandError(
            subject=_("a RayJob"),
            found=_("the job's command is missing"),
            fix=_("add the command after --, for example -- bash YOUR_SCRIPT.sh"),
        )
    made.server.check_pod(made.npus, nodes)
    return Job(made, nodes, tuple(command), name, queue, tuple(claims), interface)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise CommandError(
            subject=f"--name {name}",
            expected=_(
                "at most {longest_name} lowercase letters, digits, and hyphens, beginning with a letter and not "
                "ending with a hyphen"
            ).format(longest_name=_LONGEST_NAME),
            found=repr(name),
            fix=_("choose another name"),
        )


def _check_queue(queue: str) -> None:
    if not _LABEL.fullmatch(queue):
        raise CommandError(
            subject=f"--queue {queue}",
            expected=_(
                "the name of a Volcano queue: at most 63 letters and digits, with -, _, and . only in the middle"
            ),
            found=repr(queue),
            fix="choose one of the queues that `kubectl get queue` lists",
        )


def _check_paths(claims: Sequence[Claim]) -> None:
    taken = [SHARED_MEMORY, *(file.path for file in FILES)]
    for claim in claims:
        if claim.path in taken:
            raise CommandError(
                subject=f"--claim {claim.name}:{claim.path}",
                expected=_("a path that no other volume uses"),
                found=claim.path,
                fix="choose another path",
            )
        taken.append(claim.path)
