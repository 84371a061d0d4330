"""The role of this host in a launch, the variables that it gets, and the checks before anything starts."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from verl_npu.ascend.variables import HCCL_INTERFACE, ON_EVERY_HOST, VIRTUAL_NPUS, VISIBLE_DEVICES, virtual_npus
from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from ..doctor.site import ask_npu_smi
from ..processes import own_python
from .network import here, refused, resolve, towards

PORT = 6766
"""Ray's port on the head node, from verl's page about training on several machines."""
_ANYWHERE = "198.51.100.1"  # an address from RFC 5737 that no host has, so the default route leads there
_GLOO, _ADDRESS = "GLOO_SOCKET_IFNAME", "HCCL_IF_IP"
_PRELOAD = "LD_PRELOAD"
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's options for one launch."""

    command: tuple[str, ...]
    nodes: int | None = None
    head: str = ""
    hosts: tuple[str, ...] = ()
    port: int = PORT
    npus: int | None = None
    wait: float = 600.0
    ray: tuple[str, ...] = ()
    doctor: bool = True
    jemalloc: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """This host, as one of the machines on which the launcher starts the job."""

    request: Request
    nodes: int
    is_head: bool
    head: str
    """The address of the head node. Empty if it is unknown."""
    address: str
    npus: int
    added: Mapping[str, str]
    """The variables that the launch adds because the user has not set them."""
    environ: Mapping[str, str]
    refusals: Sequence[LaunchError]
    """The reasons why this host cannot take part."""

    def ray(self) -> list[str]:
        """Return the command that starts Ray on this host."""
        role = ["--head", f"--port={self.request.port}"]
        if not self.is_head:
            role = [f"--address={self.environ['RAY_ADDRESS']}"]
        own = [f"--node-ip-address={self.address}", f"--resources={json.dumps({'NPU': self.npus})}"]
        options = [*role, *own, "--disable-usage-stats", *self.request.ray]
        return own_python("-m", "ray.scripts.scripts", "start", *options)


def look(request: Request, environ: Mapping[str, str]) -> Host:
    """Examine this host without starting anything.

    Raises LaunchError if the options contradict each other. Problems on this host are listed in `refusals` of the
    returned host.
    """
    nodes, first = _who(request, environ)
    refusals: list[LaunchError] = []

    def tried(find: Callable[[], Found], otherwise: Found) -> Found:
        try:
            return find()
        except LaunchError as refusal:
            refusals.append(refusal)
            return otherwise

    interfaces, name = here(), socket.gethostname().partition(".")[0]
    head = tried(lambda: resolve(first), "") if nodes > 1 else "127.0.0.1"
    is_head = nodes == 1 or first.partition(".")[0] == name or head in {*interfaces.values()} - {"127.0.0.1"}
    if is_head and nodes > 1 and head.startswith("127."):
        # Debian's /etc/hosts maps the host's own name to 127.0.1.1.
        head = tried(lambda: towards(next((each for each in request.hosts if each != first), _ANYWHERE)), "")
    own = head if is_head or not head else tried(lambda: towards(first), "")
    npus = tried(lambda: count_npus(environ, request.npus), 0)
    added = tried(lambda: variables(environ, interfaces, own if nodes > 1 else ""), dict[str, str]())
    if request.jemalloc:
        added |= tried(lambda: preload(environ), dict[str, str]())
    if find_spec("ray") is None:
        refusals.append(
            refused(
                "verl-npu launch",
                "",
                _("the package {package} is not installed").format(package="ray"),
                "pip install 'ray[default]'",
            )
        )
    given = {**environ, **added, "RAY_ADDRESS": f"{head}:{request.port}"}
    return Host(request, nodes, is_head, head, own, npus, added, given, refusals)


def _who(request: Request, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of hosts and the name of the head. Raises LaunchError if the options contradict the
    scheduler's variables or each other."""
    hosts = request.hosts
    nodes = request.nodes or len(hosts) or 1
    head = request.head or (hosts[0] if hosts else "")
    if hosts and (not len({*hosts}) == len(hosts) == nodes or head not in hosts):
        expected = _("{count} different hosts, including the head").format(count=nodes)
        raise refused("--hosts", expected, ",".join(hosts), _("correct the list, --nodes, or --head"))
    if nodes > 1 and (head in ("", "localhost") or head.startswith("127.")):
        expected = _("a name or an address that the other hosts use to reach the head")
        raise refused("--head", expected, head or _("no head"), _("add --head HOST"))
    for name in ("SLURM_STEP_NUM_NODES", "OMPI_COMM_WORLD_SIZE"):
        if nodes == 1 and environ.get(name, "1") != "1":
            expected, fix = _("the list or the number of the hosts"), _("add --hosts, or --nodes and --head")
            raise refused("verl-npu launch", expected, f"{name}={environ[name]}", fix)
    return nodes, head


def variables(environ: Mapping[str, str], interfaces: Mapping[str, str], own: str) -> dict[str, str]:
    """Return the variables that verl's documentation names and the user has not set, with the values to set.

    `own` is this host's address, or an empty string for a job on one host. Raises LaunchError if one of the user's
    variables names an interface or an address that this host does not have.
    """
    for variable, known in ((_GLOO, [*interfaces]), (_ADDRESS, [*interfaces.values()])):
        if (value := environ.get(variable)) and value not in known:
            found = _("another value than {known}").format(known=", ".join(known))
            fix = _("correct the variable, or unset it to use the interface that reaches the head")
            raise refused(f"{variable}={value}", _("an interface or an address of this host"), found, fix)
    wanted = {advice.name: advice.value for advice in ON_EVERY_HOST}
    for name in (name for name, address in interfaces.items() if own and address == own):
        # HCCL reads a name as a prefix unless = precedes it; Gloo uses the exact name.
        wanted |= {HCCL_INTERFACE: f"={name}", _GLOO: name, _ADDRESS: own}
    if environ.get(HCCL_INTERFACE):
        # The address would override the user's interface.
        wanted.pop(_ADDRESS, None)
    return {name: value for name, value in wanted.items() if not environ.get(name)}


def preload(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable that makes the dynamic linker load jemalloc before a program's libraries.

    Raises LaunchError if the dynamic linker does not find the library, because otherwise every program would print an
    ld.so error.
    """
    given = environ.get(_PRELOAD, "")
    if "jemalloc" in given:
        return {}
    library = find_library("jemalloc")
    if library is None:
        raise refused(
            "--jemalloc",
            _("the library jemalloc on this host"),
            _("none"),
            _("install it (`apt install libjemalloc2` or `yum install jemalloc`), or omit --jemalloc"),
        )
    return {_PRELOAD: ":".join(filter(None, (library, given)))}


def count_npus(environ: Mapping[str, str], expected: int | None) -> int:
    """Return the number of NPUs. Raises LaunchError if there are none, or if the number is not `expected`."""
    if virtual := virtual_npus(environ):
        count, found = int(virtual) if virtual.isdecimal() else 0, f"{VIRTUAL_NPUS}={virtual}"
    else:
        answer = ask_npu_smi(environ)
        count, found = len(answer.npus), answer.problem or _("{count} in npu-smi").format(count=len(answer.npus))
    shown = environ.get(VISIBLE_DEVICES)
    if count and shown is not None:
        count = min(count, len([each for each in shown.split(",") if each.strip().isdecimal()]))
        found += _(", of which {name}={value} shows {count}").format(name=VISIBLE_DEVICES, value=shown, count=count)
    if not count or expected not in (None, count):
        fix = _("run `verl-npu doctor` to find the reason, or set VIRTUAL_ASCEND=2 to use two virtual NPUs")
        raise refused(_("NPUs of this host"), str(expected or _("at least one")), found, fix)
    return count
