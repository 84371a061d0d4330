"""What the virtual Ascend costs against plain CPU: `import torch`, one small operator, one training step.

Run as `python benchmarks/virtual_overhead.py`; builds the device first if it must. One line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

REPEATS = 5

# The two devices take turns, so that a busy machine slows both.
_MEASURE = """
import json, time, torch
torch.set_num_threads(1)
def seconds(call, count):
    began = time.perf_counter()
    for _ in range(count): call()
    return (time.perf_counter() - began) / count
def step_of(device):
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 64, 128, device=device)
    def step():
        model(x).pow(2).mean().backward(); optimizer.step(); optimizer.zero_grad()
    step()
    return step
steps = {device: step_of(device) for device in ("cpu", "npu")}
inputs = {device: torch.randn(64, 64, device=device) for device in steps}
out = {device: {"add_us": float("inf"), "step_ms": float("inf")} for device in steps}
for _ in range(8):
    for device, best in out.items():
        x = inputs[device]
        best["add_us"] = min(best["add_us"], seconds(lambda: x + x, 4000) * 1e6)
        best["step_ms"] = min(best["step_ms"], seconds(steps[device], 2) * 1e3)
print(json.dumps(out))
"""


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
    virtual = {**os.environ, "VERL_NPU_VIRTUAL": "2"}
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE], env=virtual, check=True, stdout=subprocess.PIPE, text=True
    )
    measured = json.loads(result.stdout)
    measured["import_torch_s"] = _import_seconds(VERL_NPU_VIRTUAL="0")
    measured["import_torch_virtual_s"] = _import_seconds(VERL_NPU_VIRTUAL="2")
    measured["add_ratio"] = measured["npu"]["add_us"] / measured["cpu"]["add_us"]
    measured["step_ratio"] = measured["npu"]["step_ms"] / measured["cpu"]["step_ms"]
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
