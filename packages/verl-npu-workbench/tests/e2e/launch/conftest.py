"""Launches over hosts that are network namespaces, and what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .hosts import PROJECT, Host, network, why_not

TINY = Path(__file__).with_name("tiny.py")
GRACE = 8
LONGEST = 300.0
"""Seconds that anything may take on a busy machine."""
QUICK = {
    # Ray gives a silent node half a minute by itself.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    # Two cores for several hosts: nothing is started before it is needed.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000",
}


@dataclass
class Launch:
    """One command on some hosts."""

    folder: Path
    hosts: list[Host]
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)
    seconds: float = -1.0
    """From the first question how it ended to its end."""

    def text(self, host: Host) -> str:
        """What it printed on a host."""
        log = self.folder / f"{host.name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def await_text(self, host: Host, pattern: str) -> None:
        self.await_that(lambda: re.search(pattern, self.text(host)) is not None, pattern)

    def await_file(self, name: str) -> None:
        self.await_that((self.folder / name).exists, name)

    def await_that(self, holds: Callable[[], bool], what: str, within: float = LONGEST) -> None:
        ends = time.monotonic() + within
        while not holds():
            ended = all(process.poll() is not None for process in self.processes.values())
            if time.monotonic() > ends or (ended and not holds()):
                pytest.fail(f"waited in vain for {what}\n{self.everything()}")
            time.sleep(0.1)

    def interrupt(self, host: Host, number: int = signal.SIGINT) -> None:
        """Send a signal to the launch alone, as a terminal does not know of what it started."""
        # `ip netns exec` and `unshare` have become the command itself.
        os.kill(self.processes[host.name].pid, number)

    def statuses(self, within: float = LONGEST) -> list[int | None]:
        """Wait for the end on all hosts."""
        start = time.monotonic()
        while any(process.poll() is None for process in self.processes.values()):
            if time.monotonic() - start > within:
                pytest.fail(f"it does not end\n{self.everything()}")
            time.sleep(0.1)
        if self.seconds < 0:
            self.seconds = time.monotonic() - start
        return [process.returncode for process in self.processes.values()]

    def everything(self) -> str:
        return "\n".join(f"== {host.name}\n{self.text(host)[-3000:]}" for host in self.hosts)


@dataclass
class Site:
    """The hosts, and what runs there."""

    root: Path
    hosts: list[Host]
    bystanders: list[subprocess.Popen]
    launches: int = 0

    def launch(
        self,
        *options: str,
        job: tuple[str, ...] = (),
        on: int = 2,
        start: int | None = None,
        command: tuple[str, ...] = (),
        **variables: str,
    ) -> Launch:
        """Start a launch on the first `start` hosts; the job is for `on` of them."""
        self.launches += 1
        folder = self.root / f"l{self.launches}"
        folder.mkdir()
        (folder / "hosts").write_text((self.root / "hosts").read_text())
        (folder / "r").mkdir()
        launch = Launch(folder, self.hosts)
        for host in self.hosts[: on if start is None else start]:
            self.join(launch, host, *options, job=job, on=on, command=command, **variables)
        return launch

    def join(
        self,
        launch: Launch,
        host: Host,
        *options: str,
        job: tuple[str, ...] = (),
        on: int = 2,
        command: tuple[str, ...] = (),
        **variables: str,
    ) -> None:
        """Start it on a host more."""
        who = () if {"--hosts", "--nodes"} & {*options} else ("--nodes", str(on), "--head", "h0")
        usual = (*who, "--cpus", "4", "--wait", "90", "--grace", str(GRACE), "--temp-dir", str(launch.folder / "r"))
        tiny = (sys.executable, str(TINY), str(on), str(launch.folder), *job)
        line = [sys.executable, "-m", "verl_npu", "launch", *usual, *options, "--", *(command or tiny)]
        environ = self.environ(variables)
        launch.processes[host.name] = host.start(
            launch.folder / "r", launch.folder / f"{host.name}.log", line, environ
        )

    def ends(self, launch: Launch, statuses: list[int], within: float, what: str) -> None:
        """A launch ends with these statuses, in time, and leaves nothing; the others' processes are all there."""
        found, left = launch.statuses(), self.left()
        print(f"| {what} | {' '.join(map(str, found))} | {launch.seconds:.0f} | {len(left)} |")
        assert found == statuses, launch.everything()
        assert launch.seconds <= within
        assert left == []

    def kill(self, launch: Launch, host: Host) -> None:
        """A host loses its power, and its bystander with it."""
        bystander = self.bystanders.pop(self.hosts.index(host))
        host.die()
        bystander.wait()
        launch.processes.pop(host.name).wait()

    @staticmethod
    def environ(variables: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HCCL_", "GLOO_"))}
        paths = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
        return {**kept, **QUICK, "VIRTUAL_ASCEND": "2", "PYTHONPATH": paths, **variables}

    def left(self) -> list[str]:
        """What runs on the hosts, but for the bystanders, who must all be there."""
        others = {process.pid for process in self.bystanders}
        assert [process.poll() for process in self.bystanders] == [None] * len(self.bystanders)
        pids = {pid for host in self.hosts for pid in host.pids()}
        return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids - others if Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Path, list[Host]]]:
    pytest.importorskip("ray")
    reason = why_not()
    if reason:
        pytest.skip(reason)
    # Ray's sockets are in a folder below, and their paths must be short.
    with (
        tempfile.TemporaryDirectory(prefix="vl", dir="/tmp", ignore_cleanup_errors=True) as folder,
        network(4, Path(folder)) as made,
    ):
        yield Path(folder), made


@pytest.fixture
def site(hosts: tuple[Path, list[Host]], heeds_ctrl_c: None) -> Iterator[Site]:
    """Four hosts, on each of which somebody else's Python runs, under a name that a careless `pkill` would hit."""
    root, made = hosts
    folder = Path(tempfile.mkdtemp(prefix="t", dir=root))
    (folder / "hosts").write_text((root / "hosts").read_text())
    sleeper = ["ip", "netns", "exec"]
    program = "import time; time.sleep(10000)  # ray::raylet"
    bystanders = [
        subprocess.Popen([*sleeper, host.space, sys.executable, "-c", program], start_new_session=True)
        for host in made
    ]
    site = Site(folder, made, [*bystanders])
    try:
        yield site
    finally:
        for host in made:
            host.die()
            host.plug()
        for process in bystanders:
            process.wait()


@pytest.fixture
def ssh(site: Site, tmp_path: Path) -> str:
    """A PATH with an `ssh` to the hosts, for the first launch of the site.

    It does what ssh does with its arguments: they are joined, and the other host's shell reads them, without our
    variables.
    """
    program = tmp_path / "ssh"
    spaces = " ".join(f"{host.name}) s={host.space};;" for host in site.hosts)
    program.write_text(
        f"#!/bin/sh\nshift 2; h=$1; shift; case $h in {spaces} esac\n"
        'exec env -i HOME="$HOME" nsenter --net=/run/netns/$s unshare --mount --uts '
        f'sh -c "mount -t tmpfs none {site.root}/l1/r; hostname $h; $*"\n'
    )
    program.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"
