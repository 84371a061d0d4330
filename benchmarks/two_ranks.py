"""Starts two ranks on two virtual NPUs with the virtual hccl, and joins them, for the benchmarks of weight syncs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any


def start(script: str, given: list[str], bandwidth: float) -> dict[str, Any]:
    """Run `script --rank RANK FOLDER *given` as both ranks, and return rank 0's last line, parsed as JSON.

    `bandwidth` is in GB/s; 0 does not limit it. End the program if a rank fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "VIRTUAL_ASCEND": "2", "OMP_NUM_THREADS": "1"}
        if bandwidth:
            environment["VIRTUAL_ASCEND_FAULTS"] = f"slow:bandwidth={bandwidth}"
        ranks = [
            subprocess.Popen(
                [sys.executable, script, "--rank", str(rank), folder, *given],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [process.communicate(timeout=1800)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"a rank failed: {[process.returncode for process in ranks]}")
    return dict(json.loads(outputs[0].splitlines()[-1]))


def join(rank: int, folder: Path) -> tuple[Any, Any]:
    """Join the weight-sync group of both ranks, which meet through `folder`; return the group and this rank's
    device."""
    import torch
    import torch_npu  # noqa: F401

    from verl_npu.features.weight_sync.transport import group as groups
    from verl_npu.features.weight_sync.transport.messages import Meeting, Secret, open_meeting

    torch.npu.set_device(rank)
    device = torch.device("npu", rank)
    meeting_file = folder / "meeting"
    if rank == 0:
        meeting = open_meeting("127.0.0.1", 0, 600)
        (folder / "new").write_text(json.dumps([meeting.host, meeting.port, meeting.secret.value.hex()]))
        (folder / "new").rename(meeting_file)
    else:
        while not meeting_file.exists():
            time.sleep(0.01)
        host, port, secret = json.loads(meeting_file.read_text())
        meeting = Meeting(host, port, Secret(bytes.fromhex(secret)))
    return groups.join("benchmark", meeting, rank, 2, timeout=600, device=device), device


def timed_in_turn(
    group: Any, ways: Mapping[str, Callable[[], object]], repeats: int, slow: Collection[str] = ()
) -> dict[str, list[float]]:
    """Run each way `repeats` times on both ranks, and return its seconds. A slow way runs at most twice.

    The ways run in turns, so that other work on the machine affects all of them. The first turn does not count.
    """
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            if name in slow and turn > 2:
                continue
            group.messages.exchange(f"{name}/{turn}", b"")
            began = time.perf_counter()
            way()
            group.messages.exchange(f"{name}/{turn}/done", b"")
            if turn:
                spent[name].append(time.perf_counter() - began)
    return spent
