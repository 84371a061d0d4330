"""A training on several machines, as KubeRay and Ascend's scheduler would take it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.errors import ContainerError
from verl_npu.language import gettext as _

from .container import FILES, SHARED_MEMORY, Container

_LONGEST_NAME = 47  # KubeRay appends to it, and refuses longer ones: MaxRayJobNameLength in utils/constant.go.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Claim:
    """A volume with models, data and checkpoints that all machines see."""

    name: str
    """Of the PersistentVolumeClaim."""
    path: str
    """Where it is mounted."""

    @property
    def volume(self) -> str:
        """What a pod calls it."""
        return f"claim-{self.name}"

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Read `NAME:/path`. Raises ContainerError."""
        name, _unused, path = text.partition(":")
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or not path.startswith("/"):
            raise ContainerError(
                subject=f"--claim {text}",
                expected=_("NAME:/PATH, a PersistentVolumeClaim and where it is mounted"),
                found=repr(text),
                fix=_("see verl-npu setup --help"),
            )
        return cls(name, path)


@dataclass(frozen=True, slots=True)
class Job:
    """A training on several machines."""

    container: Container
    nodes: int
    command: tuple[str, ...]
    name: str
    queue: str
    claims: tuple[Claim, ...] = ()
    interface: str = ""
    """The network interface of all machines over which HCCL and gloo meet; empty lets them choose."""


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
    """Return a job that the cluster can be asked for.

    Raises:
        ContainerError: Kubernetes would refuse a name, no command, two volumes at one path, or a number of NPUs that
            Ascend's scheduler gives to no pod.
    """
    _check_name(name)
    _check_queue(queue)
    _check_paths(claims)
    if not command:
        raise ContainerError(
            subject=_("a RayJob"),
            expected=_("the job's command after --"),
            found=_("none"),
            fix=_("add -- bash YOUR_SCRIPT.sh"),
        )
    made.server.check_pod(made.npus, nodes)
    return Job(made, nodes, tuple(command), name, queue, tuple(claims), interface)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ContainerError(
            subject=f"--name {name}",
            expected=_("at most {longest_name} small letters, digits and hyphens, a letter first").format(
                longest_name=_LONGEST_NAME
            ),
            found=repr(name),
            fix=_("choose another name"),
        )


def _check_queue(queue: str) -> None:
    if not _LABEL.fullmatch(queue):
        raise ContainerError(
            subject=f"--queue {queue}",
            expected=_("the name of one of Volcano's queues: at most 63 letters, digits, and - _ . between them"),
            found=repr(queue),
            fix="kubectl get queue lists them",
        )


def _check_paths(claims: Sequence[Claim]) -> None:
    taken = [SHARED_MEMORY, *(file.path for file in FILES)]
    for claim in claims:
        if claim.path in taken:
            raise ContainerError(
                subject=f"--claim {claim.name}:{claim.path}",
                expected=_("a path at which nothing else is mounted"),
                found=claim.path,
                fix="mount it elsewhere",
            )
        taken.append(claim.path)
