"""vllm-ascend's own communicator over the virtual Ascend's libhccl.so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_ascend.testing import free_port, results, start_ranks

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PYHCCL = """
import json, os, pathlib, torch
rank = int(os.environ["RANK"]); torch.npu.set_device(rank)
from vllm.distributed.utils import StatelessProcessGroup
from vllm_ascend.distributed.device_communicators.pyhccl import PyHcclCommunicator
import vllm_ascend
comm = PyHcclCommunicator(StatelessProcessGroup.create("127.0.0.1", int(os.environ["PORT"]), rank, 2), rank)
out = {"source": vllm_ascend.__file__, "disabled": comm.disabled}
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    x = torch.full((1 << 18,), rank + 1, dtype=dtype, device="npu")
    total = comm.all_reduce(x); comm.broadcast(x, 1); torch.npu.synchronize()
    out[str(dtype)] = [*total.unique().tolist(), *x.unique().tolist()]
print(json.dumps(out))
"""


def test_vllm_ascends_pyhccl_runs_on_it_unchanged(source: Callable[[str, str], Path], tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="PyHccl needs vLLM: run this test in the environment of the pin ccd7d934")
    checkout = source("vllm-ascend", "v0.11.0")
    path = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    ranks = start_ranks(PYHCCL, tmp_path, HCCL_SO_PATH=None, PYTHONPATH=path, PORT=str(free_port()))
    for out in results(ranks):
        assert Path(out.pop("source")).is_relative_to(checkout)
        assert out.pop("disabled") is False
        assert list(out.values()) == [[3, 2]] * 3
