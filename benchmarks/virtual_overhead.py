"""Compares the virtual Ascend with the plain CPU in one run: `import torch`, a small operator, a training step of a
transformer with 100 million parameters, and an all-reduce of 64 MB over 2 ranks.

Run `python benchmarks/virtual_overhead.py`. It compiles the device first if necessary, takes some minutes and 6 GB of
memory, and prints one line of JSON. Both devices are measured in turns, so that a busy machine slows both. A ratio is the
median of the turns' ratios.
"""

# ruff: noqa: E501 - lines of programs in strings

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 5
GOALS = {"small_operator": 1.5, "training_step": 1.10, "all_reduce": 1.10}

_TURNS = """
import json, os, statistics, time, torch
def seconds(call, count):
    began = time.perf_counter()
    for _ in range(count): call()
    return (time.perf_counter() - began) / count
def compare(calls, count, turns):
    times = {device: [] for device in calls}
    for turn in range(turns):
        for device in (("cpu", "npu"), ("npu", "cpu"))[turn % 2]:
            times[device].append(seconds(calls[device], count))
    ratio = statistics.median(ours / plain for ours, plain in zip(times["npu"], times["cpu"]))
    return {"cpu_ms": min(times["cpu"]) * 1e3, "npu_ms": min(times["npu"]) * 1e3, "ratio": ratio}
"""

_COMPUTING = (
    _TURNS
    + """
torch.set_num_threads(1)
out = {}
inputs = {device: torch.randn(64, 64, device=device) for device in ("cpu", "npu")}
out["small_operator"] = compare({d: (lambda x=x: x + x) for d, x in inputs.items()}, 4000, 15)
class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))
def step_of(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10000, 768), *(Block(768, 12) for _ in range(12)), torch.nn.Linear(768, 10000)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(10000, (1, 128), device=device)
    def step():
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step(); optimizer.zero_grad()
    step()
    return step, sum(p.numel() for p in model.parameters())
steps = {device: step_of(device) for device in ("cpu", "npu")}
out["training_step"] = compare({d: step for d, (step, _) in steps.items()}, 1, 9)
out["training_step"]["parameters"] = steps["npu"][1]
print(json.dumps(out))
"""
)

_REDUCING = (
    _TURNS
    + """
import torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("cpu:gloo,npu:hccl", init_method=os.environ["INIT"], rank=rank, world_size=2)
inputs = {device: torch.zeros(16 << 20, device=device) for device in ("cpu", "npu")}
for x in inputs.values(): dist.all_reduce(x)
out = compare({d: (lambda x=x: dist.all_reduce(x)) for d, x in inputs.items()}, 2, 15)
print(json.dumps({"all_reduce": out}), flush=True)
os._exit(0)
"""
)


def _start(program: str, **changes: str) -> subprocess.Popen[str]:
    env = {**os.environ, "VIRTUAL_ASCEND": "2", "OMP_NUM_THREADS": "1", **changes}
    return subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)


def _result(*processes: subprocess.Popen[str]) -> dict[str, Any]:
    outputs = [process.communicate()[0] for process in processes]
    for process in processes:
        if process.returncode != 0:
            raise SystemExit(f"a measuring process ended with status {process.returncode}; see its error above")
    measured: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return measured


def _import_seconds(**changes: str) -> float:
    env = {**os.environ, **changes}
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], env=env, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure, and print one line of JSON."""
    measured = _result(_start(_COMPUTING))
    with tempfile.TemporaryDirectory() as folder:
        init = f"file://{Path(folder) / 'meet'}"
        measured |= _result(*(_start(_REDUCING, RANK=str(rank), INIT=init) for rank in range(2)))
    for name, goal in GOALS.items():
        measured[name]["goal"] = goal
    measured["import_torch_s"] = {
        "plain": _import_seconds(VIRTUAL_ASCEND="0"),
        "virtual": _import_seconds(VIRTUAL_ASCEND="2"),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
