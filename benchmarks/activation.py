"""Measures what verl-npu costs a process: importing it, `import torch`, and a patched call.

Each figure and its baseline are measured in turns, in one run, because the machine is noisy and the ratio is not.
Imports are measured in CPU time, with cached bytecode, as in an installed package. Run it with the Python of an
environment that has verl-npu, torch, and verl: `python benchmarks/activation.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

# `import torch` as if verl-npu were not installed: torch still looks for entry points, but does not find ours.
TORCH_WITHOUT = """
import importlib.metadata as metadata
every = metadata.entry_points
metadata.entry_points = lambda **keys: [entry for entry in every(**keys) if entry.name != "verl_npu"]
import torch
"""
TORCH_WITH = TORCH_WITHOUT.replace(' if entry.name != "verl_npu"', "")

# For each row, the two programs, and the two sets of environment variables.
IMPORTS = {
    "import verl_npu, no Ascend software": ("pass", "import verl_npu", {}, {}),
    "import torch, no Ascend software": (TORCH_WITHOUT, TORCH_WITH, {}, {}),
    "import torch, VERL_NPU=on": (TORCH_WITHOUT, TORCH_WITH, {}, {"VERL_NPU": "on"}),
    "import verl's trainer, VERL_NPU=on": (
        "import verl.trainer.ppo.ray_trainer",
        "import verl.trainer.ppo.ray_trainer",
        {"VERL_NPU": "off"},
        {"VERL_NPU": "on"},
    ),
}


def seconds(program: str, environment: dict[str, str]) -> float:
    """Return the CPU time of a new interpreter that runs `program`, measured inside it from the first line."""
    timed = f"import time; began = time.process_time()\n{program}\nprint('took', time.process_time() - began)"
    dropped = ("VERL_NPU", "PYTHONDONTWRITEBYTECODE")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    # One thread where libraries allow it, because idle threads would add CPU time.
    inherited["OMP_NUM_THREADS"] = "1"
    result = subprocess.run(
        [sys.executable, "-c", timed], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def imports(repeats: int) -> Table:
    """Return a table of the medians of `repeats` alternating runs."""
    table = Table("import", "without", "with", "difference", "ratio", title=f"median of {repeats} runs in turns")
    for name, (plain, ours, plain_env, our_env) in IMPORTS.items():
        without, with_ = [], []
        seconds(ours, our_env)  # writes the bytecode
        for _ in range(repeats):
            without.append(seconds(plain, plain_env))
            with_.append(seconds(ours, our_env))
        a, b = statistics.median(without), statistics.median(with_)
        ratio = f"{b / a:.3f}" if a > 1e-3 else "-"
        table.add_row(name, f"{a * 1e3:.1f} ms", f"{b * 1e3:.1f} ms", f"{(b - a) * 1e3:+.1f} ms", ratio)
    return table


def calls() -> Table:
    """Return a table of the time of a plain call, and of calls that the registry has replaced and wrapped."""
    from verl_npu.registry.apply.replacement import build
    from verl_npu.registry.apply.slots import Slot
    from verl_npu.registry.patch import Feature
    from verl_npu.registry.source.probe import Never

    feature = Feature("calls", "for this benchmark")
    texts = {"why": "a benchmark", "how": "a benchmark", "link": "none", "retired_by": Never("a benchmark")}

    def target(x: int) -> int:
        return x

    @feature.replace("a:replaced", **texts)
    def replaced(x: int) -> int:
        return x

    @feature.wrap("a:wrapped", **texts)
    def wrapped(original: Callable[[int], int], x: int) -> int:
        return original(x)

    made: dict[str, Callable[[int], int]] = {"as it is": target}
    made |= {patch.id: build(patch, target, Slot(sys.modules[__name__], "target")) for patch in feature}
    number, rounds = 200_000, 15
    best = {name: float("inf") for name in made}
    for _ in range(rounds):
        for name, function in made.items():
            best[name] = min(best[name], timeit.timeit(lambda f=function: f(1), number=number) / number)
    table = Table("call", "time", "more", title=f"best of {rounds} rounds in turns")
    for name, value in best.items():
        table.add_row(name, f"{value * 1e9:.0f} ns", f"{(value - best['as it is']) * 1e9:+.0f} ns")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11)
    repeats = parser.parse_args().repeats
    console = Console(width=110)
    console.print(calls())
    console.print(imports(repeats))


if __name__ == "__main__":
    main()
