"""PyTorch's own profiler on an NPU, which asks the device for the times of its operators."""

from __future__ import annotations

import json
from pathlib import Path

from packaging.version import Version
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, os, torch
from torch.autograd.profiler import profile
from torch.profiler import record_function
with profile(use_device="npu", record_shapes=True) as prof:
    with record_function("step"):
        x = torch.randn(64, 64, device="npu", requires_grad=True)
        (x @ x).sum().backward()
prof.export_chrome_trace(os.environ["TRACE"])
events = prof.function_events
print(json.dumps({"names": sorted({event.name for event in events}),
                  "torch": torch.__version__, "device": max(event.device_time_total for event in events)}))
"""


def test_the_profiler_sees_the_operators_of_an_npu(python: Run, tmp_path: Path) -> None:
    done = python(PROGRAM, TRACE=str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert "Exception in RecordFunction" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"step", "aten::mm", "MmBackward0"} <= set(found["names"])
    if Version(found["torch"]).release >= (2, 13):  # torch 2.5 does not add up the device's times
        assert found["device"] > 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
