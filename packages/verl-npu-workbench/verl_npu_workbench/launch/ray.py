"""Ray as a launch uses it: the command lines and the process of a node on this host, and the job in Ray's job API."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from verl_npu.ascend.variables import VISIBLE_DEVICES
from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from ..processes import Interruptions, ProcessTree, Started
from .preparation import Prepared

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

PATIENT = {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300"}
"""What lets Ray's dashboard, which has the job API, come up on a busy host: after half a minute it hangs for ever."""
PORTS = 3
"""How many free ports a node needs that Ray does not choose by itself: dashboard, its agent, Ray's client server."""


def head_command(prepared: Prepared, temp: Path, ports: Sequence[int]) -> list[str]:
    """Return the command that starts the head's node."""
    dashboard, agent, client = ports
    return [
        *_common(prepared, agent),
        "--head",
        f"--port={prepared.request.port}",
        f"--temp-dir={temp}",
        # Not --include-dashboard: with it Ray itself ends where the dashboard takes more than 20 seconds.
        # Whoever reaches the dashboard may run anything, and nobody needs it from outside.
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}",
    ]


def worker_command(prepared: Prepared, ports: Sequence[int]) -> list[str]:
    """Return the command that starts any other host's node."""
    return [*_common(prepared, ports[1]), f"--address={prepared.address}"]


def _common(prepared: Prepared, agent: int) -> list[str]:
    cpus = [f"--num-cpus={prepared.request.cpus}"] if prepared.request.cpus else []
    return [
        sys.executable,
        *("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        f"--node-ip-address={prepared.interface.address}",
        f"--node-name={prepared.name}",
        f"--resources={json.dumps({'NPU': prepared.npus})}",
        *cpus,
        f"--dashboard-agent-listen-port={agent}",
        # By itself each Ray on a host gives its workers 10002 and the following, taken or not; 0 is any free one.
        *("--min-worker-port=0", "--max-worker-port=0"),
    ]


_LINES = 12
_TRIES = 3
_BUSY = "timed out during startup"
"""What `ray start` says when its own half a minute was too short, on a host that is busy."""


class RayProcess:
    """The process of `ray start`. Raises LaunchError if it cannot be started."""

    def __init__(
        self, processes: ProcessTree, command: Sequence[str], environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._processes = processes
        self._command = command
        self._environ = environ
        self._say = say
        self._tries = _TRIES
        self._member = self._start()

    def _start(self) -> Started:
        self._tries -= 1
        try:
            return self._processes.start(self._command, self._environ)
        except OSError as error:
            raise LaunchError(
                subject="ray start",
                expected=_("Ray to start"),
                found=error.strerror or str(error),
                fix=_("reinstall ray"),
            ) from error

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._member.process.poll() is not None

    def last_lines(self) -> tuple[str, ...]:
        """Return what it printed last."""
        return self._member.last_lines(_LINES)

    def check(self) -> None:
        """Raise LaunchError if it has ended. One that was too slow to come up is started again."""
        if not self.has_ended():
            return
        lines = self.last_lines()
        if self._tries and _BUSY in " ".join(lines):
            self._say("Ray gave up waiting for itself on this busy host, and is started again")
            self._member = self._start()
            return
        raise LaunchError(
            subject=_("Ray on this host"),
            expected=_("to run until the job has ended"),
            found=_("its end with status {status}: {lines}").format(
                status=self._member.process.returncode, lines=" | ".join(lines)
            ),
            fix=_("see its logs, raylet.out and gcs_server.out"),
        )


_START = 300.0
"""Seconds for Ray's dashboard to answer, which imports much."""
_KEPT = 400
"""Lines of the log that are kept for the case that a node is lost."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    status: int
    """Its exit status, as a shell says it."""
    reason: str
    """Ray's words, where it has no status of its own."""


def connect(port: int, alive: Callable[[], None], interruptions: Interruptions) -> JobSubmissionClient:
    """Return the client of the job API on this host, as soon as it answers.

    `alive` raises if it never will. Raises LaunchError.
    """
    # The user's proxy does not reach this host.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    try:
        import ray.dashboard.modules.job.job_head  # noqa: F401  # what of the job API runs on the head
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise LaunchError(
            subject=_("Ray's job API"),
            expected=_("the packages of ray[default]"),
            found=f"{type(error).__name__}: {error}",
            fix=_("pip install 'ray[default]', of the version that is installed"),
        ) from error
    found: list[JobSubmissionClient] = []

    def answers() -> bool:
        alive()
        try:
            found.append(JobSubmissionClient(f"http://127.0.0.1:{port}"))
        except (OSError, RuntimeError):
            return False
        return True

    if interruptions.until(answers, _START, every=0.5):
        return found[0]
    raise LaunchError(
        subject=_("Ray's job API"),
        expected=_("an answer within {limit:g} s").format(limit=_START),
        found=_("none"),
        fix=_("see Ray's dashboard.log"),
    )


def entrypoint(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Return the shell's line that runs a command as if it were run on the head itself."""
    # Ray hides all NPUs from the driver, since it asks for none of them, and verl asks there which device there is.
    shown = environ.get(VISIBLE_DEVICES)
    words = ["env", *(["-u", VISIBLE_DEVICES] if shown is None else [f"{VISIBLE_DEVICES}={shown}"]), *command]
    return f"cd {shlex.quote(str(folder))} && exec {shlex.join(words)}"


def submit(client: JobSubmissionClient, entry: str, name: str) -> None:
    """Hand the job to Ray. Raises LaunchError."""
    try:
        client.submit_job(entrypoint=entry, submission_id=name)
    except (OSError, RuntimeError) as error:
        raise LaunchError(
            subject=_("the job"),
            expected=_("Ray to take it"),
            found=str(error).strip(),
            fix=_("see Ray's dashboard.log"),
        ) from error


def ended(details: JobDetails) -> Ended | None:
    """Return how a job ended; None while it runs."""
    status = str(getattr(details.status, "value", details.status))
    if status not in ("SUCCEEDED", "FAILED", "STOPPED"):
        return None
    code = details.driver_exit_code
    if code is None:
        return Ended(int(status != "SUCCEEDED"), (details.message or "").strip())
    # A negative one is the signal that ended the driver. Ray's message then only repeats the end of the log.
    return Ended(128 - code if code < 0 else code, "")


class RunningJob:
    """A job that runs, as Ray's job API sees it."""

    def __init__(self, client: JobSubmissionClient, name: str, patience: float) -> None:
        self._client = client
        self._name = name
        self._patience = patience
        self._heard = time.monotonic()

    def look(self) -> Ended | None:
        """Return how it ended; None while it runs. Raises LaunchError if Ray has not answered for too long."""
        try:
            details = self._client.get_job_info(self._name)
        except (OSError, RuntimeError) as error:
            if time.monotonic() - self._heard <= self._patience:
                return None
            raise LaunchError(
                subject=_("Ray's job API"),
                expected=_("an answer within {limit:g} s").format(limit=self._patience),
                found=str(error).strip(),
                fix=_("see Ray's dashboard.log"),
            ) from error
        self._heard = time.monotonic()
        return ended(details)

    def stop(self) -> None:
        """Ask Ray to end it. If Ray does not answer, the end of Ray ends it."""
        try:
            self._client.stop_job(self._name)
        except (OSError, RuntimeError):
            return


class Log:
    """The file in which Ray keeps what the job prints, copied as it grows."""

    def __init__(self, temp: Path, name: str, output: BinaryIO) -> None:
        # Ray's documents name this file: "Driver logs of jobs submitted with the Ray Jobs API".
        self._path = temp / "session_latest" / "logs" / f"job-driver-{name}.log"
        self._output = output
        self._at = 0
        self._part = b""
        self._lines: deque[str] = deque(maxlen=_KEPT)

    def copy(self) -> None:
        """Copy what is new. Raises OSError if the output is gone."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._at)
                news = stream.read()
        except FileNotFoundError:
            return
        if news:
            self._at += len(news)
            *whole, self._part = (self._part + news).split(b"\n")
            self._lines.extend(line.decode(errors="replace") for line in whole)
            self._output.write(news)
            self._output.flush()

    def lines_of(self, address: str, count: int) -> list[str]:
        """Return the last lines that processes on another host printed; Ray names the address in each."""
        return [click.unstyle(line) for line in self._lines if f"ip={address})" in line][-count:]
