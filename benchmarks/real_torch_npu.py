"""What virtual NPUs under torch_npu's own wheel cost, beside our own torch_npu and the CPU.

Each figure is measured beside what it is compared with, in turns, in one run: the machine is noisy, the ratio is not.
Run it with the python of an environment that has verl-npu, transformers, torch and torch_npu's wheel, such as the one
that `scripts/smoke.sh --torch-npu 2.13.0` makes: `python benchmarks/real_torch_npu.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

REAL = {"VIRTUAL_ASCEND": "2", "VIRTUAL_ASCEND_TORCH_NPU": "real"}
OURS = {"VIRTUAL_ASCEND": "2", "VIRTUAL_ASCEND_TORCH_NPU": "ours"}
NONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

STUB = """
import os
from virtual_ascend.real import loading
import torch
print(loading._stub, os.environ["ASCEND_HOME_PATH"], os.environ["ASCEND_OPP_PATH"])
"""
# As if verl-npu were not installed: torch looks for entry points all the same, and finds torch_npu's alone.
ALONE = """
import importlib.metadata as metadata
every = metadata.entry_points
metadata.entry_points = lambda **keys: [entry for entry in every(**keys) if entry.name != "verl_npu"]
import torch
assert "torch_npu" in __import__("sys").modules
"""
STEPS = """
import time, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
torch.manual_seed(0)
config = Qwen2Config(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
                     num_attention_heads=4, num_key_value_heads=2)
model = Qwen2ForCausalLM(config).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 512, (4, 64)).to(DEVICE)
def step():
    model(ids, labels=ids).loss.backward(); optimizer.step(); optimizer.zero_grad()
step()
began = time.process_time()
for _ in range(5): step()
print((time.process_time() - began) / 5)
"""
SMALL = """
import time, torch
x = torch.ones(8).to(DEVICE)
for _ in range(200): x + 1
began = time.process_time()
for _ in range(5000): x + 1
print((time.process_time() - began) / 5000)
"""


def run(program: str, environment: dict[str, str]) -> str:
    dropped = ("VIRTUAL_ASCEND", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    command = [sys.executable, "-c", program]
    env = {**inherited, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def took(program: str, environment: dict[str, str]) -> float:
    timed = f"import time; began = time.process_time()\n{program}\nprint(time.process_time() - began)"
    return float(run(timed, environment).split()[-1])


def imports(repeats: int) -> Table:
    """`import torch`: with no device, with ours, with the wheel over the stub by itself, and with the wheel and us."""
    folder, home, operators = run(STUB, REAL).split()[-3:]
    path = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    alone = {"LD_LIBRARY_PATH": path, "ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": operators, "VERL_NPU": "off"}
    variants = {
        "no device": ("import torch", NONE),
        "our torch_npu": ("import torch", OURS),
        "the wheel by itself, over the stub": (ALONE, alone),
        "the wheel with us": ("import torch", REAL),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, (program, environment) in variants.items():
            seconds[name].append(took(program, environment))
    base = statistics.median(seconds["the wheel by itself, over the stub"])
    table = Table("import torch", "median", "beside the wheel", title=f"{repeats} runs in turns, processor time")
    for name, values in seconds.items():
        median = statistics.median(values)
        table.add_row(name, f"{median * 1e3:.0f} ms", f"{median / base:.2f}")
    return table


def work(repeats: int) -> Table:
    """A small operator, and a training step of a small model, on the CPU, on our device, and under the wheel."""
    table = Table("work", "CPU", "ours", "the wheel", "wheel / ours", title=f"median of {repeats} runs in turns")
    for title, program in (("x + 1, 8 numbers", SMALL), ("training step, Qwen2, 4 layers", STEPS)):
        seconds: dict[str, list[float]] = {"cpu": [], "ours": [], "real": []}
        for _ in range(repeats):
            for name, environment in (("cpu", NONE), ("ours", OURS), ("real", REAL)):
                device = "cpu" if name == "cpu" else "npu"
                # transformers imports torch_npu if it is installed.
                needed = OURS if name == "cpu" else environment
                seconds[name].append(float(run(f"DEVICE = {device!r}\n{program}", needed).split()[-1]))
        cpu, ours, real = (statistics.median(values) for values in seconds.values())
        table.add_row(
            title, f"{cpu * 1e6:.0f} us", f"{ours * 1e6:.0f} us", f"{real * 1e6:.0f} us", f"{real / ours:.2f}"
        )
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    console = Console()
    console.print(f"SIMULATED, on {Path(sys.prefix).name}")
    console.print(imports(repeats))
    console.print(work(repeats))


if __name__ == "__main__":
    main()
