"""What a host is given and checked for before anything is started on it."""

from __future__ import annotations

import resource
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from subprocess import DEVNULL
from typing import TypeVar

from verl_npu.ascend.variables import HCCL_INTERFACE, ON_EVERY_HOST, VIRTUAL_NPUS, VISIBLE_DEVICES, virtual_npus
from verl_npu.errors import LaunchError, SettingError
from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _

from ..doctor import Site
from ..doctor.cluster import read
from ..doctor.site import ask_npu_smi
from ..doctor.variables import RULES
from ..processes import Interruptions, ProcessTree, own_python, why_port_is_taken
from .cluster import Cluster, Request, cluster_of
from .network import Interface, here, is_here, named, resolve, towards

_DOCTOR = 300.0
"""Seconds for the doctor, who reads files only."""
_NOT_KNOWN = Interface("INTERFACE", "ADDRESS")
"""In a plan, where this machine cannot tell."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A host that is ready to take part."""

    request: Request
    cluster: Cluster
    interface: Interface
    name: str
    npus: int
    environ: Mapping[str, str]
    """What processes are started with."""
    added: Mapping[str, str]
    """What of it the user has not set."""
    head: str
    """The address of the head."""

    @property
    def address(self) -> str:
        """Where Ray's control service is."""
        return f"{self.head}:{self.request.port}"


def prepare(request: Request, environ: Mapping[str, str], doubts: list[str] | None = None) -> Prepared:
    """Look at this host. Nothing is started or changed but this process's limits.

    What this host lacks is added to `doubts`, if they are given: who plans a launch may sit at a machine without NPUs.
    Raises LaunchError.
    """
    interfaces = here()
    cluster = cluster_of(request, environ, interfaces)

    def tolerated(look: Callable[[], Found], otherwise: Found) -> Found:
        try:
            return look()
        except LaunchError as refusal:
            if doubts is None:
                raise
            doubts.append(str(refusal))
            return otherwise

    tolerated(lambda: check_interfaces(environ, interfaces), None)
    if cluster.is_head:
        own = _of_head(request, cluster, interfaces)
        head = own.address
        tolerated(lambda: _check_port(request.port), None)
    else:
        head, own = tolerated(lambda: _of_node(request, cluster.head, interfaces), (cluster.head, _NOT_KNOWN))
    count = tolerated(lambda: count_npus(environ, request.npus), 0)
    added = host_variables(environ, own, alone=cluster.most == 1)
    # Another Ray that the user's shell points to is none of this launch.
    kept = {
        name: value for name, value in environ.items() if name not in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
    }
    raise_limits()
    return Prepared(request, cluster, own, socket.gethostname(), count, {**kept, **added}, added, head)


def _check_port(port: int) -> None:
    taken = why_port_is_taken("", port)
    if taken:
        raise LaunchError(
            subject=_("port {port} of this host").format(port=port),
            expected=_("a free port for Ray"),
            found=taken,
            fix=_("give all nodes another one with --port; the other launch or Ray on this host is not touched"),
        )


def _of_node(request: Request, name: str, interfaces: tuple[Interface, ...]) -> tuple[str, Interface]:
    """Return the address of the head, and the interface at which this host reaches it."""
    head = resolve(name)
    own = named(request.interface, interfaces) if request.interface else towards(head, interfaces)
    if own.is_loopback:
        raise LaunchError(
            subject=_("the head {name}").format(name=name),
            expected=_("an address that this host reaches over a network"),
            found=_("{head}, which is this host").format(head=head),
            fix=_("correct the name's entry in /etc/hosts, or give the address with --head"),
        )
    return head, own


def _of_head(request: Request, cluster: Cluster, interfaces: tuple[Interface, ...]) -> Interface:
    """Return the interface at which the others find the head."""
    if request.interface:
        return named(request.interface, interfaces)
    address = resolve(cluster.head) if cluster.head else ""
    if address and not address.startswith("127."):
        for interface in interfaces:
            if interface.address == address:
                return interface
    if cluster.most == 1:
        try:
            return towards("", interfaces)
        except LaunchError:
            return towards("127.0.0.1", interfaces)
    # Debian's /etc/hosts gives a host's own name 127.0.1.1.
    others = [host for host in cluster.hosts if not is_here(host, interfaces)]
    return towards(resolve(others[0]) if others else "", interfaces)


def examine(prepared: Prepared, processes: ProcessTree, interruptions: Interruptions) -> list[Finding]:
    """Let the doctor look at this host at his static level. Raises Interrupted, FleetError."""
    command = own_python("-m", "verl_npu", "doctor", "--json")
    with tempfile.TemporaryFile() as output:
        member = processes.start(command, prepared.environ, output, stderr=DEVNULL)
        interruptions.until(lambda: member.process.poll() is not None, _DOCTOR)
        output.seek(0)
        return read(output.read().decode(errors="replace"), prepared.name)


def refusal(findings: list[Finding]) -> str:
    """Return the doctor's errors in one line; empty if there is none."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return "; ".join(f"{each.code}: {each.found} (needed: {each.expected}; {each.fix})" for each in errors)


_NAMES = ("GLOO_SOCKET_IFNAME", HCCL_INTERFACE, "TP_SOCKET_IFNAME")
_ADDRESS = "HCCL_IF_IP"
_MOST_FILES = 1 << 20
"""Programs that close all files that they might have open take minutes with more."""


def host_variables(environ: Mapping[str, str], interface: Interface, alone: bool) -> dict[str, str]:
    """Return the variables that are set on this host: those of the documents that the user has not set.

    On a host that is alone no interface is chosen.
    """
    wanted = {advice.name: advice.value for advice in ON_EVERY_HOST}
    if not alone:
        # HCCL takes a name for the beginning of names unless = stands before it; Gloo takes it as it is.
        wanted |= {HCCL_INTERFACE: f"={interface.name}", _NAMES[0]: interface.name, _ADDRESS: interface.address}
        if environ.get(HCCL_INTERFACE):
            # The address would come before the user's interface.
            del wanted[_ADDRESS]
    return {name: value for name, value in wanted.items() if not environ.get(name)}


def check_interfaces(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> None:
    """Raise LaunchError if a variable of the user names an interface or an address that this host does not have."""
    site = Site.here(None, None)
    for rule in RULES:
        text = environ.get(rule.name, "")
        trouble = rule.judge(text, site) if text and rule.name in _NAMES else ""
        if rule.name == _ADDRESS and text and text not in {each.address for each in interfaces}:
            trouble = _("no address of this host; here are {addresses}").format(
                addresses=", ".join(each.address for each in interfaces)
            )
        if trouble:
            raise LaunchError(
                subject=f"{rule.name}={text}",
                expected=rule.expected,
                found=trouble,
                fix=_("unset {name} on this host, and it is chosen, or correct it").format(name=rule.name),
            )


def raise_limits() -> None:
    """Raise this process's soft limits of open files and processes as far as it may; what it starts inherits them."""
    for kind, most in ((resource.RLIMIT_NOFILE, _MOST_FILES), (resource.RLIMIT_NPROC, resource.RLIM_INFINITY)):
        soft, hard = resource.getrlimit(kind)
        wanted = hard
        if most != resource.RLIM_INFINITY and not 0 <= hard <= most:
            wanted = most
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > soft):
            resource.setrlimit(kind, (wanted, hard))


def count_npus(environ: Mapping[str, str], expected: int | None) -> int:
    """Return how many NPUs there are, as npu-smi and ASCEND_RT_VISIBLE_DEVICES say; virtual ones if there are those.

    Raises:
        LaunchError: there are none, or not as many as `expected`.
    """
    found, source = _found(environ)
    shown = environ.get(VISIBLE_DEVICES)
    if found and shown is not None:
        found = min(found, len([each for each in shown.split(",") if each.strip().isdecimal()]))
        source += _(", of which {name}={value} shows {count}").format(name=VISIBLE_DEVICES, value=shown, count=found)
    if found and expected in (None, found):
        return found
    fix = _("see `verl-npu doctor`; VIRTUAL_ASCEND=2 uses two virtual NPUs")
    if found:
        fix = _("say --npus {found}, or leave --npus out").format(found=found)
    raise LaunchError(
        subject=_("NPUs of this host"),
        expected=str(expected) if expected else _("at least one"),
        found=source,
        fix=fix,
    )


def _found(environ: Mapping[str, str]) -> tuple[int, str]:
    virtual = virtual_npus(environ)
    if virtual:
        if not (virtual.isascii() and virtual.isdecimal()):
            raise SettingError(
                subject=f"{VIRTUAL_NPUS}={virtual!r}",
                expected=_("a whole number of virtual NPUs"),
                found=repr(virtual),
                fix=_("correct it or leave it out"),
            )
        return int(virtual), _("{count} virtual").format(count=int(virtual))
    answer = ask_npu_smi(environ)
    return len(answer.npus), answer.problem or _("{count} by npu-smi").format(count=len(answer.npus))


_MODE, _EVERY = "trainer.resume_mode", "trainer.save_freq"


def check_restarts(command: Sequence[str]) -> Iterator[str]:
    """Yield what is doubtful about restarts of this command; of a script nothing can be said.

    Raises:
        LaunchError: it would begin anew each time.
    """
    settings = dict(
        word.lstrip("+").split("=", 1) for word in command if "=" in word and word.lstrip("+")[:1].isalpha()
    )
    mode = settings.get(_MODE, "auto")
    if mode == "disable":
        raise LaunchError(
            subject="--restarts",
            expected=_("{setting}=auto, verl's default, with which a job goes on from its last checkpoint").format(
                setting=_MODE
            ),
            found=f"{_MODE}={mode}",
            fix=_("leave {setting} out, or --restarts").format(setting=_MODE),
        )
    if mode == "resume_path":
        yield _("with {setting}={mode} each restart begins at that checkpoint, not at the last one").format(
            setting=_MODE, mode=mode
        )
    if any(word.startswith("verl.trainer.") for word in command) and _number(settings.get(_EVERY, "-1")) <= 0:
        yield _("without {setting}=N no checkpoint is saved, and a restart begins anew").format(setting=_EVERY)


def _number(text: str) -> int:
    # Hydra may make something else one.
    try:
        return int(text)
    except ValueError:
        return 1
