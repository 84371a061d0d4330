"""Checks that the time of commands that read files grows linearly with the size of the file, and measures their
memory.

Each input is written at two sizes, a quarter and the whole, into a temporary folder, and given to `verl-npu` in a
process of its own. Seconds are CPU time, and memory is the peak of the process. The status is 1 if a command takes
over 30 s or 500 MB, or takes more than six times as long for the whole as for the quarter.

    python benchmarks/scaling.py                      # all inputs, at the promised sizes
    python benchmarks/scaling.py --share 0.01         # a quick look
    python benchmarks/scaling.py tracebacks --share 1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_SECONDS, _MOST_BYTES, _MOST_GROWTH = 30.0, 500e6, 6.0
_PATIENCE = 600.0


def _step(number: int) -> str:
    return (
        f"step:{number} - critic/rewards/mean:{number % 97 / 97:.4f} - actor/entropy:{1 + number % 7 / 10:.3f} - "
        f"actor/grad_norm:{1 + number % 13 / 10:.2f} - timing_s/step:{10 + number % 3:.2f}\n"
    )


def _raised(number: int, prefix: str = "", error: str = "ValueError: row {number} is odd") -> str:
    lines = (
        "Traceback (most recent call last):",
        f'  File "/opt/job/reward.py", line {number % 900}, in score',
        "    return parse(answer)",
        error.format(number=number),
    )
    return "".join(f"{prefix}{line}\n" for line in lines)


def tracebacks(count: int) -> Iterator[str]:
    """Return tracebacks that no rule knows, each with a different text."""
    return map(_raised, range(count))


def caught(count: int) -> Iterator[str]:
    """Yield tracebacks that the job survives: a step follows each hundred."""
    for number in range(count):
        yield _raised(number)
        if number % 100 == 99:
            yield _step(number // 100)


def known(count: int) -> Iterator[str]:
    """Return out-of-memory tracebacks, which a rule knows, each with different numbers."""
    error = "RuntimeError: NPU out of memory. Tried to allocate {number} MiB (NPU 3; 60.96 GiB total capacity)"
    return (_raised(number, error=error) for number in range(count))


def of_cann(count: int) -> Iterator[str]:
    """Yield messages of CANN, with times."""
    for number in range(count):
        yield f"[ERROR] 2026-01-01-10:00:{number % 60:02} (PID:{number % 5000}, Device:0, RankID:0) "
        yield "ERR01100 OPS error\n"
        yield f"EZ9999: Inner Error {number}, aicore timeout\n"


def processes(count: int) -> Iterator[str]:
    """Yield the interleaved lines of many processes on different hosts, each with a traceback."""
    for line in range(6):
        for number in range(count):
            prefix = f"(WorkerDict pid={number}, ip=10.{number >> 16}.{number >> 8 & 255}.{number & 255}) "
            if line < 2:
                yield f"{prefix}2026-01-01 10:00:{number % 60:02},000 loading shard {number}\n"
            else:
                yield f"{prefix}{_raised(number).splitlines()[line - 2]}\n"
        yield f"2026-01-01 10:00:{line:02},000 the driver waits\n" * count


def steps(count: int) -> Iterator[str]:
    """Return only the steps of a training."""
    return map(_step, range(1, count + 1))


def odd_steps(count: int) -> Iterator[str]:
    """Yield steps of which two in three are odd in several ways."""
    for number in range(1, count + 1):
        yield f"step:{number} - critic/rewards/mean:{'nan' if number % 3 else 0.5} - actor/entropy:0.5 - "
        yield f"actor/grad_norm:{1 if number % 30 else 100} - timing_s/step:{10 if number % 3 else 30}"
        yield f" - timing_s/gen:{5 if number % 3 else 20}\n"


def restarts(count: int) -> Iterator[str]:
    """Return the steps of a job that starts from the beginning after every ten steps."""
    return (_step(number % 10 + 1) for number in range(count))


def observations(count: int) -> dict[str, object]:
    """Return the corpus of a proof with `count` observations."""
    parts = [
        {"key": {"kind": "seconds", "name": f"op{n}", "case": "c"}, "said": "", "results": [], "figures": {"s": 1.0}}
        for n in range(count)
    ]
    return {"schema": 1, "observations": parts}


def nested(count: int) -> dict[str, object]:
    """Return a corpus of nested lists, which no proof has."""
    return {"schema": 1, "observations": [[] for _ in range(count)]}


_PROOF = {
    "schema": 1,
    "verl_npu": "0",
    "asked": {"made": "2026-01-01", "minutes": 1.0, "npus": 0, "simulated": "", "versions": {}},
    "notes": {},
    "stages": [],
}


def _log(make: Callable[[int], Iterator[str]]) -> Callable[[Path, int], None]:
    def write(path: Path, count: int) -> None:
        with path.open("w") as file:
            file.writelines(make(count))

    return write


def _bundle(make: Callable[[int], dict[str, object]]) -> Callable[[Path, int], None]:
    def write(path: Path, count: int) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("proof.json", json.dumps(_PROOF))
            archive.writestr("corpus.json", json.dumps(make(count), separators=(",", ":")))

    return write


@dataclass(frozen=True, slots=True)
class Input:
    """An input, and the commands that read it. `LOG` stands for its path."""

    name: str
    count: int
    """The promised size."""
    write: Callable[[Path, int], None]
    commands: tuple[str, ...]


_DOCTOR, _WATCH, _COMPARE = "doctor --log LOG", "watch --once LOG", "compare LOG LOG"
INPUTS = (
    Input("tracebacks", 300_000, _log(tracebacks), (_DOCTOR, "doctor --log LOG --json")),
    Input("caught", 300_000, _log(caught), (_DOCTOR, _WATCH)),
    Input("known", 300_000, _log(known), (_DOCTOR,)),
    Input("cann", 300_000, _log(of_cann), (_DOCTOR,)),
    Input("processes", 20_000, _log(processes), (_DOCTOR,)),
    Input("steps", 6_000_000, _log(steps), (_DOCTOR, _WATCH, "watch --once --json LOG", _COMPARE)),
    Input("odd-steps", 3_000_000, _log(odd_steps), (_WATCH, _COMPARE)),
    Input("restarts", 3_000_000, _log(restarts), (_WATCH, _COMPARE)),
    Input("observations", 20_000, _bundle(observations), ("prove --show LOG", "prove --show LOG --against LOG")),
    Input("nested", 20_000_000, _bundle(nested), ("prove --show LOG",)),
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The time and memory of a command. If a signal ended it, `status` is the negative signal number."""

    status: int
    seconds: float
    peak: int
    said: str


def taken(command: str, path: Path) -> Taken:
    """Run a command, and return its CPU time and memory."""
    words = [sys.executable, "-m", "verl_npu", *(str(path) if word == "LOG" else word for word in command.split())]
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_limited)
        _unused, status, used = os.wait4(started.pid, 0)
        output.seek(0)
        first = output.read(200).decode(errors="replace").partition("\n")[0]
    return Taken(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, first)


def _limited() -> None:
    # A command that is not linear must end, and must not fill the machine.
    resource.setrlimit(resource.RLIMIT_CPU, (int(_PATIENCE), int(_PATIENCE)))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def main() -> int:
    """Measure the requested inputs, and print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="INPUT", help=", ".join(each.name for each in INPUTS))
    parser.add_argument("--share", type=float, default=1.0, help="the share of the promised sizes (default 1)")
    parser.add_argument("--seconds", type=float, default=_PATIENCE, help="the CPU time after which a command is ended")
    asked = parser.parse_args()
    globals()["_PATIENCE"] = asked.seconds
    failed = False
    print(f"{'input':<13}{'command':<32}{'N':>9}{'s':>8}{'MB':>7}{'4N':>10}{'s':>8}{'MB':>7}  growth  status")
    for each in INPUTS:
        if asked.names and each.name not in asked.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            whole = max(int(each.count * asked.share), 4)
            paths = [(Path(folder, f"{size}.log"), size) for size in (whole // 4, whole)]
            for path, size in paths:
                each.write(path, size)
            for command in each.commands:
                less, more = (taken(command, path) for path, _size in paths)
                growth = more.seconds / less.seconds
                bad = more.seconds > _MOST_SECONDS or more.peak > _MOST_BYTES or growth > _MOST_GROWTH
                failed |= bad or more.status < 0
                print(
                    f"{each.name:<13}{command:<32}{paths[0][1]:>9}{less.seconds:>8.1f}{less.peak / 1e6:>7.0f}"
                    f"{whole:>10}{more.seconds:>8.1f}{more.peak / 1e6:>7.0f}{growth:>7.1f}x  {more.status}"
                    f"{'  TOO MUCH' if bad else ''}  {more.said[:60]}",
                    flush=True,
                )
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
