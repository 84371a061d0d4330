"""What to do next is on the first screen of `verl-npu doctor --log`, in a terminal of 80 columns and 24 lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..diagnosis.quoted import raised, worker
from .conftest import Run

COLUMNS, LINES = 80, 24
STEPS = "\n".join(f"step:{step} - actor/entropy:0.3" for step in range(1, 4))
MEMORY = worker(
    raised("RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)")
)
MISTAKE = worker(
    raised("AttributeError: 'NoneType' object has no attribute 'size'", "/vllm-workspace/vllm/vllm/v1/worker/gpu.py")
)
WAITED = worker(
    raised("RuntimeError: npuSynchronizeDevice: NPU function error: AclrtSynchronizeDevice, error code is 507048")
    + "\nEI0002: [PID: 4711] 2026-06-25-10:45:23.586.187 The wait execution of the Notify register times out."
)


@pytest.mark.parametrize(
    ("log", "verdict", "to_do"),
    [
        (MEMORY, "cause", "To do: lower"),
        (MISTAKE, "unknown", 'To do: look for "'),
        (WAITED, "consequence", "To do: "),
    ],
    ids=["memory", "mistake of an engine", "a rank that waited"],
)
def test_what_to_do_is_on_the_first_screen(run: Run, tmp_path: Path, log: str, verdict: str, to_do: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{STEPS}\n{log}\n")
    status, printed = run("doctor", "--log", str(path), columns=COLUMNS)
    lines = printed.splitlines()
    # The prompt takes the last line.
    screen = " ".join(" ".join(lines[: LINES - 1]).split())
    assert (status, lines[0].partition(":")[0]) == (1, verdict)
    assert to_do in screen
    assert len(lines) < 2 * LINES
