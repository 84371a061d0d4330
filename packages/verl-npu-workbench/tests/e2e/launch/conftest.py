"""Launches over hosts that are namespaces of this machine, and everything that they leave behind.

Each host has an address, a name, processes and a folder for Ray of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[5]
LONGEST = 300.0
"""The seconds that any action may take on a busy machine."""
ENVIRON = {
    # Two cores for several hosts: nothing is started before it is needed.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "200000000",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH")))),
    "VIRTUAL_ASCEND": "2",
}
BOUND = ("setpriv", "--pdeathsig=KILL")
"""A prefix that makes hosts die with a killed test."""
# The first process reaps orphans, as that of a real host does.
FIRST = "import signal, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN); time.sleep(100000)"
BOOT = (
    "mount --make-rprivate / && mount -t proc proc /proc && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray "
    '&& mount --bind "$1" /etc/hosts && hostname "$2" && exec "$0" -c "$3"'
)


def ip(words: str) -> str:
    return subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=True).stdout


@dataclass
class Host:
    """One host; its network namespace is called `space`."""

    name: str
    space: str
    address: str
    booted: subprocess.Popen[bytes]
    """The parent of its first process, with which it ends."""
    first: int = 0

    def processes(self) -> dict[int, str]:
        """Return the host's processes by the machine's own ids, without those that every host has."""
        found = {}
        for pid in {*map(int, ip(f"netns pids {self.space}").split())} - {self.booted.pid, self.first}:
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return {pid: words for pid, words in found.items() if words}

    def start(self, log: Path, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        inside = ["nsenter", f"--target={self.first}", "--mount", "--uts", "--pid", "--net", *command]
        with log.open("ab") as out:
            return subprocess.Popen(inside, env=environ, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def has(self, path: str) -> bool:
        return subprocess.run(["nsenter", f"--target={self.first}", "--mount", "test", "-e", path]).returncode == 0

    def die(self) -> None:
        """Lose the host's power."""
        self.booted.kill()
        self.booted.wait()


@contextmanager
def network(count: int, folder: Path) -> Iterator[list[Host]]:
    """Make hosts h0, h1, … on one switch; `folder` gets their /etc/hosts."""
    tag, names = f"vn{os.getpid() % 100000}", [f"h{number}" for number in range(count)]
    addresses = [f"10.78.0.{number + 1}" for number in range(count)]
    (folder / "hosts").write_text(
        "\n".join(map(" ".join, zip(addresses, names, strict=True))) + "\n127.0.0.1 localhost\n"
    )
    unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", BOOT, sys.executable]
    hosts: list[Host] = []
    with ExitStack() as stack:
        for space in (f"{tag}s", *(f"{tag}{name}" for name in names)):
            ip(f"netns add {space}")
            stack.callback(ip, f"netns del {space}")
        ip(f"-n {tag}s link add br0 type bridge")
        ip(f"-n {tag}s link set br0 up")
        for name, address in zip(names, addresses, strict=True):
            ip(f"-n {tag}s link add {name} type veth peer name net0 netns {tag}{name}")
            ip(f"-n {tag}s link set {name} master br0 up")
            ip(f"-n {tag}{name} addr add {address}/24 dev net0")
            ip(f"-n {tag}{name} link set net0 up")
            ip(f"-n {tag}{name} link set lo up")
            boot = [*BOUND, "ip", "netns", "exec", f"{tag}{name}", *unshare, str(folder / "hosts"), name, FIRST]
            host = Host(name, f"{tag}{name}", address, subprocess.Popen(boot, stdin=subprocess.DEVNULL))
            stack.callback(host.die)
            while not host.first:
                assert host.booted.poll() is None, f"{name} does not start"
                first = (pid for pid, words in host.processes().items() if words.startswith(f"{sys.executable} -c"))
                host.first = next(first, 0)
            hosts.append(host)
        yield hosts


@dataclass
class Launch:
    """One command on some hosts."""

    folder: Path
    hosts: list[Host]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def join(self, host: Host, *options: str, job: tuple[str, ...] = (), **variables: str) -> None:
        """Start the command on one more host; `job` are options of the tiny job, or another job."""
        count = str(len(self.hosts))
        who = () if "--hosts" in options else ("--nodes", count, "--head", "h0")
        if not job or job[0].startswith("-"):
            job = (sys.executable, str(Path(__file__).with_name("tiny.py")), count, str(self.folder), *job)
        command = [sys.executable, "-m", "verl_npu", "launch", "--ray=--num-cpus=16", "--wait=150", *who, *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HCCL_", "GLOO_"))}
        log = self.folder / f"{host.name}.log"
        self.processes[host.name] = host.start(log, [*command, "--", *job], {**kept, **ENVIRON, **variables})

    def text(self, name: str) -> str:
        """Return its output on a host."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, holds: Callable[[], object], what: str, within: float = LONGEST) -> None:
        ends = time.monotonic() + within
        while not holds() and time.monotonic() < ends and any(each.poll() is None for each in self.processes.values()):
            time.sleep(0.1)
        assert holds(), f"waited in vain for {what}\n" + "\n".join(f"== {n}\n{self.text(n)}" for n in self.processes)

    def works(self) -> None:
        """Wait until the job is on all hosts."""
        self.until(lambda: all((self.folder / f"on-{host.name}").exists() for host in self.hosts), "the job")

    def interrupt(self, name: str, number: int = signal.SIGINT) -> None:
        """Send a signal to the launch alone: a terminal does not know its children."""
        pid = self.processes[name].pid
        os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), number)

    def ends(self, *statuses: int, within: float = LONGEST) -> None:
        """Check that it ends on all hosts with these statuses, and that nothing of it is left."""
        self.until(lambda: all(each.poll() is not None for each in self.processes.values()), "the end", within)
        self.until(lambda: tuple(each.returncode for each in self.processes.values()) == statuses, str(statuses))
        alive = [host for host in self.hosts if host.booted.poll() is None]
        assert [host.processes() for host in alive if host.processes()] == []
        assert [host.name for host in alive if host.has("/tmp/ray/ray_current_cluster")] == []


Start = Callable[..., Launch]


@pytest.fixture
def start(request: pytest.FixtureRequest, heeds_ctrl_c: None) -> Iterator[Start]:
    """Return a function that starts a launch on the first `on` hosts; the parameter is the number of all hosts."""
    pytest.importorskip("ray")
    lacking = [name for name in ("ip", "unshare", "nsenter", "mount", "setpriv") if shutil.which(name) is None]
    tried = ["unshare", "--mount", "--pid", "--net", "--fork", "mount", "-t", "proc", "proc", "/proc"]
    if lacking or os.geteuid() != 0 or subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        pytest.skip("hosts in namespaces need Linux, root, and iproute2 and util-linux from Debian")
    with (
        tempfile.TemporaryDirectory(prefix="vl", ignore_cleanup_errors=True) as folder,
        network(getattr(request, "param", 2), Path(folder)) as hosts,
    ):
        launch = Launch(Path(folder), hosts)

        def all_at_once(*options: str, on: int = len(hosts), job: tuple[str, ...] = (), **variables: str) -> Launch:
            for host in hosts[:on]:
                launch.join(host, *options, job=job, **variables)
            return launch

        yield all_at_once
        for host in hosts:
            host.die()
        for process in launch.processes.values():
            process.wait()
