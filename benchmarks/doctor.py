"""How long `verl-npu doctor` takes at the level `static`, beside `import torch`.

Both run in new processes, in turns, and their processor time is measured. Run it with the python of an environment
that has verl-npu, torch and verl: `python benchmarks/doctor.py`.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

COMMANDS = {
    "verl-npu doctor": ["-m", "verl_npu", "doctor"],
    "verl-npu check": ["-m", "verl_npu", "check"],
    "import torch": ["-c", "import torch"],
}


def seconds(command: list[str]) -> float:
    """Processor time of one process; its exit status does not matter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the median of each, and its ratio to `import torch`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        seconds(command)  # writes the bytecode
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    base = statistics.median(times["import torch"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<16}  {median:5.2f} s  {median / base:5.2f} times import torch")


if __name__ == "__main__":
    main()
