"""A server: started, waited for, ended with all that it started."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from verl_npu.errors import ServingError
from verl_npu.language import gettext as _

from ..diagnosis.judgement import judge
from ..processes import Interrupted, Interruptions
from .guardian import guarded
from .launch import Launch

PATIENCE = 30.0
"""Seconds that a server has to end by itself."""
_EVERY = 0.5
_LINES = 12


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started."""

    launch: Launch
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_it_answers(self, limit: float, progress: Callable[[float, str], None]) -> float:
        """Wait until it is healthy and lists the model, and return after how many seconds; `progress` is told the
        seconds so far and the last line of the log.

        Raises:
            ServingError: it ended, or does not answer within `limit` seconds.
        """
        began = time.monotonic()
        while not self._answers():
            passed = time.monotonic() - began
            if self.process.poll() is not None:
                raise self._refusal(
                    _("status {returncode} after {passed:.0f} s").format(
                        returncode=self.process.returncode, passed=passed
                    )
                )
            if passed > limit:
                raise self._refusal(_("no answer after {limit:g} s, the limit").format(limit=limit))
            last = tail(self.log, 1)
            progress(passed, last[0] if last else "")
            time.sleep(_EVERY)
        return time.monotonic() - began

    def _answers(self) -> bool:
        return _get(f"{self.launch.url}/health") is not None and self.launch.name in _models(self.launch.url)

    def _refusal(self, found: str) -> ServingError:
        cause, fix = _why(self.log)
        return ServingError(
            subject=_("vLLM's server of {model}").format(model=self.launch.model),
            expected=_("an answer at {url}").format(url=self.launch.url),
            found=_("{found}: {cause}").format(found=found, cause=cause) if cause else found,
            fix=_("{fix} (all of it is in {log})").format(fix=fix or _("look at the last lines above"), log=self.log),
        )


@contextmanager
def started(launch: Launch, log: Path) -> Iterator[Running]:
    """Start a server that writes to `log`; at the end of the `with` it is ended with all that it started, whatever
    happened, SIGKILL to this process included.

    Raises:
        ServingError: the log cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open("wb")
    except OSError as error:
        raise ServingError(
            subject=f"--log {log}",
            expected=_("a file that can be written"),
            found=str(error),
            fix=_("give another one"),
        ) from error
    with stream:
        process = guarded(launch.command(), launch.environment(), stream, PATIENCE)
    try:
        yield Running(launch, process, log)
    finally:
        _end(process)


def tail(log: Path, lines: int = _LINES) -> Sequence[str]:
    """Return the last lines that say something."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - 65536, 0))
            text = click.unstyle(stream.read().decode(errors="replace"))
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def _why(log: Path) -> tuple[str, str]:
    """Return what the rules for logs say that the cause is, and what to do; empty where they do not know it."""
    try:
        with log.open(encoding="utf-8", errors="replace") as source:
            root = judge(source, str(log)).root
    except OSError:
        return "", ""
    if root is None:
        return "", ""
    if root.finding is None:
        return root.event.error, ""
    return _("{why} ({error})").format(why=root.finding.why, error=root.event.error), root.finding.fix


def _models(url: str) -> list[str]:
    try:
        listed = json.loads(_get(f"{url}/v1/models") or b"{}")
        return [str(each["id"]) for each in listed["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _get(url: str) -> bytes | None:
    # A proxy that is set for the world outside does not lead to this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return bytes(answer.read())
    except (OSError, urllib.error.URLError):
        return None


_LOOK = 0.1
"""Seconds between two looks at a server that is ending."""


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with Interruptions() as interruptions:
        try:
            while process.poll() is None:
                interruptions.pause(_LOOK)
        except Interrupted:
            # A second Ctrl-C: no more patience.
            process.terminate()
            process.wait()
