"""Measures what the device's support for graphs costs a job without graphs.

It compares eager steps with the device of this tree with the same steps on the device of the commit before graphs. All
other changes of the device since then count, too.

    python benchmarks/without_graphs.py [--before COMMIT] [--turns 9] [--starts 9]

Each device runs in a process of its own, and the old device in two processes, which shows the noise. They are measured
in turns, in CPU time, so that a busy machine slows all of them. The placement of its memory makes a process some
percent faster or slower for its whole life. So the processes are started several times. The ratio of a start is the
median of its turns' ratios, and the result is the median of all starts. The steps are one small operator, a decoding
step, and a training step. It compiles the devices first if necessary, and prints one line of JSON. SIMULATED.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PACKAGE = "packages/virtual-ascend"
GOAL = 1.0
STEPS = ("operator", "decode_1", "decode_64", "train")
SECONDS = 0.1


def training_step() -> Callable[[], object]:
    """Return a training step: forward, backward, and AdamW of two layers of a transformer."""
    import torch

    layers = [torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True) for _ in range(2)]
    model, x = torch.nn.Sequential(*layers).npu(), torch.randn(4, 64, 256).npu()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps() -> dict[str, Callable[[], object]]:
    """Return the steps to measure, by name."""
    import torch
    from graphs import step_of

    x = torch.randn(64, 64).npu()

    def decode(batch: int) -> Callable[[], object]:
        step = step_of(8, 512, batch)

        def without_gradients() -> object:
            with torch.no_grad():
                return step()

        return without_gradients

    return dict(zip(STEPS, (lambda: x + x, decode(1), decode(64), training_step()), strict=True))


def serve() -> None:
    """Read names of steps from stdin, and print the time of each."""
    import torch
    import virtual_ascend
    from graphs import seconds

    torch.set_num_threads(1)
    torch.manual_seed(0)
    known = steps()
    counts = {name: max(2, int(SECONDS / seconds(step, 3))) for name, step in known.items()}
    print(json.dumps(virtual_ascend.__file__), flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps(seconds(known[name], counts[name])), flush=True)


def started(tree: Path) -> subprocess.Popen[str]:
    """Start a process with the device of a tree."""
    package = tree / PACKAGE
    path = os.pathsep.join((str(package), str(HERE.parent)))
    env = {**os.environ, "VIRTUAL_ASCEND": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(HERE), "--serve"]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found = Path(answer(process))
    if package not in found.parents:
        raise SystemExit(f"expected the device of {package}; found that of {found.parent}")
    return process


def answer(process: subprocess.Popen[str]) -> Any:
    """Return the next line of a process, parsed as JSON."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit("a measuring process ended; see its error above")
    return json.loads(line)


def measured(devices: Mapping[str, subprocess.Popen[str]], name: str, turns: int) -> dict[str, float]:
    """Return the milliseconds of a step with each device, and their ratio."""

    def taken(process: subprocess.Popen[str]) -> float:
        if process.stdin is not None:
            process.stdin.write(name + "\n")
            process.stdin.flush()
        return float(answer(process))

    rounds = []
    for turn in range(turns):
        order = tuple(devices)[turn % len(devices) :] + tuple(devices)[: turn % len(devices)]
        rounds.append({which: taken(devices[which]) for which in order})
    return {
        "before_ms": statistics.median(each["before"] for each in rounds) * 1e3,
        **{which: statistics.median(each[which] / each["before"] for each in rounds) for which in ("now", "again")},
    }


def once(old: Path, now: Path, turns: int) -> dict[str, dict[str, float]]:
    """Start all devices, measure each step, and end them."""
    devices = {"before": started(old), "again": started(old), "now": started(now)}
    try:
        return {name: measured(devices, name, turns) for name in STEPS}
    finally:
        for process in devices.values():
            process.kill()
            process.communicate()


def summary(starts: list[dict[str, float]]) -> dict[str, float]:
    """Return the milliseconds of a step, the ratio over all starts, and the difference of two equal processes."""
    return {
        "before_ms": statistics.median(one["before_ms"] for one in starts),
        "ratio": statistics.median(one["now"] for one in starts),
        "again": statistics.median(one["again"] for one in starts),
        "noise": statistics.median(abs(one["again"] - 1) for one in starts),
    }


def main() -> None:
    """Measure each step, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="d9db7c9a^")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    root = HERE.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(root), "archive", asked.before, PACKAGE]
        archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        old = Path(folder)
        starts = [once(old, root, asked.turns) for _ in range(asked.starts)]
    found = {name: summary([start[name] for start in starts]) for name in STEPS}
    reached = all(one["ratio"] <= GOAL + one["noise"] for one in found.values())
    print(json.dumps({"goal": GOAL, "before": asked.before, "steps": found, "reached": reached}))


if __name__ == "__main__":
    main()
