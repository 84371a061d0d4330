"""Hosts that are network namespaces of this machine: each with an address, a name and a folder for Ray of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[5]
NET = "10.78.0"
# Unix sockets cross network namespaces: with one folder for them, Ray takes the hosts for one.
OWN = (
    'mount --make-rprivate / && mount -t tmpfs none "$0" && mount --bind "$1" /etc/hosts && hostname "$2" '
    '&& shift 2 && exec "$@"'
)


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Host:
    """One of them."""

    name: str
    space: str
    """Its network namespace."""
    address: str

    def pids(self) -> list[int]:
        """All processes of the host."""
        return [int(pid) for pid in ip("netns", "pids", self.space).stdout.split()]

    def die(self) -> None:
        """Lose its power."""
        for _ in range(20):
            pids = self.pids()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not pids:
                return
            time.sleep(0.1)

    def unplug(self) -> None:
        """Lose its network, without a word to anybody."""
        ip("-n", self.space, "link", "set", "net0", "down")

    def plug(self) -> None:
        """Have its network, as at the beginning."""
        ip("-n", self.space, "link", "set", "net0", "up")

    def start(self, folder: Path, log: Path, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen:
        """Start a command on the host."""
        own = ["unshare", "--mount", "--uts", "sh", "-c", OWN, str(folder), str(folder.parent / "hosts"), self.name]
        with log.open("ab") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.space, *own, *command],
                env=dict(environ),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


def why_not() -> str:
    """Why there can be no such hosts here; empty if there can."""
    lacking = [name for name in ("ip", "unshare", "mount") if shutil.which(name) is None]
    if sys.platform != "linux" or lacking or os.geteuid() != 0:
        return "hosts in network namespaces need Linux, root, and iproute2 and util-linux from Debian"
    space = f"vnt{os.getpid()}"
    made = ip("netns", "add", space)
    ip("netns", "del", space)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def network(count: int, folder: Path) -> Iterator[list[Host]]:
    """Make hosts h0, h1, … on one switch; `folder` gets their /etc/hosts and each launch's folder."""
    tag = f"vn{os.getpid() % 100000}"
    switch = f"{tag}s"
    hosts = [Host(f"h{number}", f"{tag}h{number}", f"{NET}.{number + 1}") for number in range(count)]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts))
    try:
        steps = [ip("netns", "add", switch), ip("-n", switch, "link", "add", "br0", "type", "bridge")]
        steps.append(ip("-n", switch, "link", "set", "br0", "up"))
        for number, host in enumerate(hosts):
            port = f"p{number}"
            steps += [
                ip("netns", "add", host.space),
                ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", host.space),
                ip("-n", switch, "link", "set", port, "master", "br0"),
                ip("-n", switch, "link", "set", port, "up"),
                ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "net0"),
                ip("-n", host.space, "link", "set", "net0", "up"),
                ip("-n", host.space, "link", "set", "lo", "up"),
            ]
        wrong = [step.stderr for step in steps if step.returncode]
        if wrong:
            raise RuntimeError(f"the network could not be made: {wrong}")
        yield hosts
    finally:
        for host in hosts:
            host.die()
            ip("netns", "del", host.space)
        ip("netns", "del", switch)
