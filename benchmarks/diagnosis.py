"""Measures how long `verl-npu doctor --log` takes for various logs: long, one line, binary, only colours, compressed.

Each log is written into a temporary folder and judged in this process. The CPU time is shown beside the time for
splitting the same text into lines and searching each for one word. Run it with the Python of an environment that has
verl-npu: `python benchmarks/diagnosis.py`, or with `--megabytes 1` for a quick look. The status is 1 if a log does not
get the expected verdict.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from verl_npu_workbench.diagnosis.judgement import Conclusion, diagnose

MEGABYTE = 1_000_000
_OOM = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)"


def _lines(size: int) -> Iterator[str]:
    """Yield the lines of a typical training log: steps, lines of workers and engines, warnings that name errors."""
    chance = random.Random(1)
    written = step = 0
    while written < size:
        step += 1
        block = [
            f"\x1b[36m(TaskRunner pid=71)\x1b[0m step:{step} - actor/entropy:{chance.random():.4f} - "
            f"critic/score/mean:{chance.random():.4f} - timing_s/gen:{chance.random() * 9:.3f}",
            *(
                f"\x1b[36m(WorkerDict pid={4000 + rank}, ip=10.0.0.{rank % 4})\x1b[0m INFO 11-25 10:{step % 60:02}:00 "
                f"[core.py:{chance.randrange(900)}] Avg generation throughput: {chance.random() * 900:.1f} tokens/s"
                for rank in range(16)
            ),
            f"(WorkerDict pid=4003) UserWarning: {chance.random()} is no number, ValueError: ignored",
        ]
        for line in block:
            written += len(line) + 1
            yield line


def _long(size: int) -> bytes:
    failed = (
        f'Traceback (most recent call last):\n  File "/opt/verl/worker.py", line 3, in step\n    self.go()\n{_OOM}\n'
    )
    return ("\n".join(_lines(size)) + "\n" + failed).encode()


def _one_line(size: int) -> bytes:
    return b"x " * (size // 2) + b"\n" + _OOM.encode() + b"\n"


def _binary(size: int) -> bytes:
    return random.Random(2).randbytes(size)


def _colours(size: int) -> bytes:
    return b"\x1b[36m" * (size // 5) + b"\n" + _OOM.encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of log."""

    name: str
    share: float
    """Its size, as a multiple of --megabytes."""
    make: Callable[[int], bytes]
    expected: Conclusion
    packed: bool = False


KINDS = (
    Kind("a training log that ends in an error", 1, _long, Conclusion.CAUSE),
    Kind("the same log, compressed with gzip", 1, _long, Conclusion.CAUSE, packed=True),
    Kind("one long line, and an error", 4, _one_line, Conclusion.CAUSE),
    Kind("only colour codes, and an error", 1, _colours, Conclusion.CAUSE),
    Kind("binary data", 1, _binary, Conclusion.UNKNOWN),
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The time that a log took."""

    kind: Kind
    megabytes: float
    plain: float
    """Seconds to split the text into lines, and to search each for one word."""
    judged: float
    said: Conclusion


def measured(kind: Kind, megabytes: float, folder: Path) -> Taken:
    """Write a log of a kind, and judge it."""
    content = kind.make(int(megabytes * kind.share * MEGABYTE))
    began = time.process_time()
    sum("Traceback" in line for line in content.decode(errors="replace").splitlines())
    plain = time.process_time() - began
    path = folder / "train.log"
    path.write_bytes(gzip.compress(content, 1) if kind.packed else content)
    size = len(content) / MEGABYTE
    del content
    began = time.process_time()
    said = diagnose([path]).verdict
    return Taken(kind, size, plain, time.process_time() - began, said)


def main() -> int:
    """Measure each kind, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50.0)
    asked = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        taken = [measured(kind, asked, Path(folder)) for kind in KINDS]
    table = Table("log", "MB", "lines only, s", "judged, s", "MB/s", "verdict")
    for each in taken:
        right = each.said is each.kind.expected
        verdict = each.said.value if right else f"{each.said.value}, and not {each.kind.expected.value}"
        speed = f"{each.megabytes / each.judged:.1f}"
        table.add_row(
            each.kind.name, f"{each.megabytes:.0f}", f"{each.plain:.2f}", f"{each.judged:.2f}", speed, verdict
        )
    console = Console(width=130)
    console.print(table)
    console.print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    return int(any(each.said is not each.kind.expected for each in taken))


if __name__ == "__main__":
    sys.exit(main())
