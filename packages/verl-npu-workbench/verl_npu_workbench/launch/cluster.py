"""Who takes part in a launch, and whether this host is the head: from options, lists of hosts, SLURM, or OpenMPI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from .network import Interface, is_here

PORT = 6766
"""Where Ray's control service listens on the head; the one of verl's page on several machines."""
_SLURM_ONCE = "srun --ntasks-per-node=1 verl-npu launch …"
_MPI_ONCE = "mpirun --map-by ppr:1:node verl-npu launch …"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One launch, as the options say it; times are in seconds."""

    command: tuple[str, ...]
    nodes: int | None = None
    spare: int = 0
    head: str = ""
    hosts: tuple[str, ...] = ()
    folder: Path = Path()
    """Where the job is started."""
    interface: str = ""
    port: int = PORT
    npus: int | None = None
    cpus: int | None = None
    wait: float = 600.0
    """For all nodes to come, at the beginning and before each restart."""
    grace: float = 30.0
    """For what should end by itself: the job after a node was lost, Ray after the job, and a head that is silent."""
    restarts: int = 0
    temp: Path | None = None
    """The folder of Ray's sockets and logs, which has the same path on all hosts; None for a new one."""
    doctor: bool = True
    ssh: bool = False
    """Whether this host starts the others."""
    attached: bool = False
    """Whether the end of the standard input ends this, which another host started."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who takes part."""

    needed: int
    """The nodes that the job needs."""
    spare: int
    """How many more may join, to take the place of those that are lost."""
    head: str
    """The name or the address of the host that runs the job; empty if there is only this one."""
    is_head: bool
    hosts: tuple[str, ...] = ()
    """All of them, the head first; empty if they are not known before they come."""

    @property
    def most(self) -> int:
        """How many nodes may take part."""
        return self.needed + self.spare


def cluster_of(asked: Request, environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Cluster:
    """Return who takes part.

    Options come before SLURM's and OpenMPI's variables, and of these only what the options leave open is taken.
    Raises LaunchError if they do not tell, or contradict each other.
    """
    hosts, first = asked.hosts, None
    count = asked.nodes
    if not hosts and not asked.head and "SLURM_JOB_ID" in environ:
        hosts, first = _of_slurm(environ)
    elif "OMPI_COMM_WORLD_SIZE" in environ:
        started, first = _of_openmpi(environ, asked)
        count = count or started - asked.spare
    head = asked.head or (hosts[0] if hosts else "")
    count = count or (len(hosts) - asked.spare if hosts else 1)
    _check(asked, count, head, hosts)
    if len(hosts) < 2 and not head:
        return Cluster(1, 0, "", is_head=True)
    is_head = is_here(head, interfaces) if first is None else first
    ordered = tuple(sorted(hosts, key=lambda host: host != head))
    return Cluster(count, asked.spare, head, is_head, ordered)


def _of_slurm(environ: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    listed = environ.get("SLURM_STEP_NODELIST", "")
    if not listed:
        whole = expand(environ.get("SLURM_JOB_NODELIST", "") or "localhost")
        if len(whole) > 1:
            found = _("SLURM's job {job} of {nodes} nodes, and no step").format(
                job=environ["SLURM_JOB_ID"], nodes=len(whole)
            )
            raise _refused(
                "SLURM",
                _("to be started on every node"),
                found,
                _("start it with {command}").format(command=_SLURM_ONCE),
            )
        return (), True
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if any(int(number) > 1 for number in re.findall(r"(?:^|,)(\d+)", tasks)):
        raise _refused(
            "SLURM", _("one task on each node"), tasks, _("start it with {command}").format(command=_SLURM_ONCE)
        )
    return expand(listed), environ.get("SLURM_NODEID", "0") == "0"


def _of_openmpi(environ: Mapping[str, str], asked: Request) -> tuple[int, bool]:
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1") != "1":
        found = _("{count} on this one").format(count=environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
        raise _refused(
            "mpirun", _("one process on each node"), found, _("start it with {command}").format(command=_MPI_ONCE)
        )
    size = int(environ["OMPI_COMM_WORLD_SIZE"])
    if size > 1 and not asked.head and not asked.hosts:
        found = _("none: mpirun tells its processes no address")
        raise _refused("mpirun", _("the host of rank 0"), found, _("add --head HOST, or mpirun's own --hostfile"))
    return size, environ.get("OMPI_COMM_WORLD_RANK", "0") == "0"


def _check(asked: Request, count: int, head: str, hosts: Sequence[str]) -> None:
    if hosts and asked.nodes and len(hosts) != asked.nodes + asked.spare:
        expected = _("{count} hosts (--nodes {nodes} --spare {spare})").format(
            count=asked.nodes + asked.spare, nodes=asked.nodes, spare=asked.spare
        )
        raise _refused(_("the list of hosts"), expected, str(len(hosts)), _("correct --nodes, or the list"))
    if count < 1:
        raise _refused(
            "--spare",
            _("fewer than the {count} nodes").format(count=count + asked.spare),
            str(asked.spare),
            _("lower it"),
        )
    if hosts and head not in hosts:
        raise _refused(
            "--head", _("one of {hosts}").format(hosts=", ".join(hosts)), head, _("name it as the list does")
        )
    if count + asked.spare > 1 and not head:
        found = _("no head")
        raise _refused("--nodes", _("--head HOST, --hosts, or --hostfile beside it"), found, _("add --head HOST"))
    if count + asked.spare > 1 and (head == "localhost" or head.startswith("127.")):
        raise _refused("--head", _("an address that the other nodes reach"), head, _("name the host"))


def _refused(subject: str, expected: str, found: str, fix: str) -> LaunchError:
    return LaunchError(subject=subject, expected=expected, found=found, fix=fix)


_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 65536
"""More hosts than this are a slip of the pen."""


def of_text(text: str) -> tuple[str, ...]:
    """Return the hosts of `a,b,c`."""
    return _distinct([part.strip() for part in text.split(",") if part.strip()], text)


def of_file(path: Path) -> tuple[str, ...]:
    """Return the hosts of a hostfile: one a line, and what follows on it (`slots=8`, `user=…`) is left out.

    Raises:
        LaunchError: it cannot be read, holds no host, or one twice.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or _("no text")
        raise _refused(str(path), _("a file with a host on each line"), found, _("correct the path")) from error
    words = [line.partition("#")[0].split() for line in lines]
    return _distinct([each[0].partition(":")[0] for each in words if each], str(path))


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of SLURM's `node[01-03,7],login1`, in its order.

    Raises:
        LaunchError: it cannot be read.
    """
    parts, inside = [""], False
    for character in text.strip():
        inside = character == "[" or (inside and character != "]")
        # A comma within brackets parts numbers, any other one parts hosts.
        if character == "," and not inside:
            parts.append("")
        else:
            parts[-1] += character
    return _distinct([host for part in parts for host in _of_part(part.strip(), text)], text)


def _of_part(part: str, text: str) -> list[str]:
    found = _BRACKETS.search(part)
    if found is None:
        if not part or set(part) & set("[]"):
            raise _refused(text, _("hosts such as node[01-03,7]"), repr(part), _("correct the list"))
        return [part]
    hosts: list[str] = []
    for each in found[1].split(","):
        numbers = _RANGE.fullmatch(each.strip())
        if numbers is None:
            raise _refused(text, _("numbers and ranges in brackets"), repr(each), _("correct the list"))
        first, last = numbers[1], numbers[2] or numbers[1]
        if not 0 <= int(last) - int(first) < _MOST:
            raise _refused(text, _("a range that counts upwards"), repr(each), _("correct the list"))
        for number in range(int(first), int(last) + 1):
            hosts += _of_part(f"{part[: found.start()]}{number:0{len(first)}d}{part[found.end() :]}", text)
    return hosts


def _distinct(hosts: list[str], text: str) -> tuple[str, ...]:
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if not hosts or twice:
        found = _("{hosts} twice").format(hosts=", ".join(twice)) if twice else _("none")
        raise _refused(text or _("the list of hosts"), _("each host once"), found, _("correct the list"))
    return tuple(hosts)
