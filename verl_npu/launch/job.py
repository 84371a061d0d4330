"""The job: handed to Ray's own job API on the head, its log followed, its exit code kept."""

from __future__ import annotations

import importlib
import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import click

from ..ascend.variables import VISIBLE_DEVICES
from ..errors import LaunchError
from ..interruption import Interruptions

__all__ = ["Client", "Ended", "Log", "Watched", "connect", "ended", "entrypoint", "submit"]

_START = 300.0
"""Seconds for Ray's dashboard to answer, which imports much."""
_KEPT = 400
"""Lines of the log that are kept for the case that a node is lost."""


class Details(Protocol):
    """Ray's JobDetails, what is used of it."""

    status: object
    message: str | None
    driver_exit_code: int | None


class Client(Protocol):
    """Ray's JobSubmissionClient, what is used of it."""

    def submit_job(self, *, entrypoint: str, submission_id: str) -> str: ...
    def get_job_info(self, job_id: str) -> Details: ...
    def stop_job(self, job_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    status: int
    """Its exit status, as a shell says it."""
    reason: str
    """Ray's words, where it has no status of its own."""


def connect(port: int, alive: Callable[[], None], interruptions: Interruptions) -> Client:
    """Return the client of the job API on this host, as soon as it answers.

    `alive` raises if it never will. Raises LaunchError.
    """
    # The user's proxy does not reach this host.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    try:
        module = importlib.import_module("ray.job_submission")
        importlib.import_module("ray.dashboard.modules.job.job_head")
    except ImportError as error:
        raise LaunchError(
            subject="Ray's job API",
            expected="the packages of ray[default]",
            found=f"{type(error).__name__}: {error}",
            fix="pip install 'ray[default]', of the version that is installed",
        ) from error
    found: list[Client] = []

    def answers() -> bool:
        alive()
        try:
            found.append(module.JobSubmissionClient(f"http://127.0.0.1:{port}"))
        except (OSError, RuntimeError):
            return False
        return True

    if interruptions.until(answers, _START, every=0.5):
        return found[0]
    raise LaunchError(
        subject="Ray's job API", expected=f"an answer within {_START:g} s", found="none", fix="see Ray's dashboard.log"
    )


def entrypoint(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Return the shell's line that runs a command as if it were run on the head itself."""
    # Ray hides all NPUs from the driver, since it asks for none of them, and verl asks there which device there is.
    shown = environ.get(VISIBLE_DEVICES)
    words = ["env", *(["-u", VISIBLE_DEVICES] if shown is None else [f"{VISIBLE_DEVICES}={shown}"]), *command]
    return f"cd {shlex.quote(str(folder))} && exec {shlex.join(words)}"


def submit(client: Client, entry: str, name: str) -> None:
    """Hand the job to Ray. Raises LaunchError."""
    try:
        client.submit_job(entrypoint=entry, submission_id=name)
    except (OSError, RuntimeError) as error:
        raise LaunchError(
            subject="the job", expected="Ray to take it", found=str(error).strip(), fix="see Ray's dashboard.log"
        ) from error


def ended(details: Details) -> Ended | None:
    """Return how a job ended; None while it runs."""
    status = str(getattr(details.status, "value", details.status))
    if status not in ("SUCCEEDED", "FAILED", "STOPPED"):
        return None
    code = details.driver_exit_code
    if code is None:
        return Ended(int(status != "SUCCEEDED"), (details.message or "").strip())
    # A negative one is the signal that ended the driver. Ray's message then only repeats the end of the log.
    return Ended(128 - code if code < 0 else code, "")


class Watched:
    """A job that runs, as Ray's job API sees it."""

    def __init__(self, client: Client, name: str, patience: float) -> None:
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
                subject="Ray's job API",
                expected=f"an answer within {self._patience:g} s",
                found=str(error).strip(),
                fix="see Ray's dashboard.log",
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
