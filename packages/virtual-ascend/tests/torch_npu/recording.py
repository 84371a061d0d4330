"""A pytest plugin that writes each test's outcome as it ends, so that a file that hangs loses only one test.

$TORCH_NPU_RESULTS names the file, $TORCH_NPU_SECONDS limits each test.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest


def _reason(text: str, otherwise: str) -> str:
    """Return the line of a traceback that has the error."""
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    said = [line for line in said if line] or [otherwise]
    # The error of a process of a group is at the end of the traceback that it sent.
    raised = [line for line in said if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return raised[-1] if "exception:" in said[0] and raised else said[0]


def _write(test: str, outcome: str, text: str = "", otherwise: str = "") -> None:
    reason = " ".join(_reason(text, otherwise).split())[:400] if outcome != "passed" else ""
    line = {"test": test, "outcome": outcome, "reason": reason, "text": text[-6000:]}
    with open(os.environ["TORCH_NPU_RESULTS"], "a") as results:
        results.write(json.dumps(line) + "\n")


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2] or "(collecting)"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the call of each test, and its set-up or tear-down where that failed."""
    if report.when == "call" or report.outcome != "passed":
        text = report.longreprtext
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            text, said = "", str(report.longrepr[2])
        else:
            said = text.strip().splitlines()[-1] if text.strip() else ""
        _write(_name(report.nodeid), report.outcome, text, said)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that cannot be imported."""
    if report.outcome == "failed":
        text = report.longreprtext
        _write("(collecting)", "failed", text, text.strip().splitlines()[-1])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """End a test that takes too long, and the ranks that a failed one left: they hold the port of the next."""
    seconds = int(os.environ["TORCH_NPU_SECONDS"])

    def ring(*_: Any) -> None:
        raise TimeoutError(f"not over after {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    for rank in multiprocessing.active_children():
        rank.kill()
        rank.join()
