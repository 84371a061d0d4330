"""Graphs in programs of their own: collectives of two ranks, memory that sleeps, and replays that are strict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

RANKS = """
import json, os, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=size)
x = torch.full((2,), rank + 1.0, device="npu")
whole, part = torch.zeros(4, device="npu"), torch.zeros(1, device="npu")
came, own = torch.zeros(2, device="npu"), torch.zeros(2, device="npu")
rows = [torch.zeros(2, device="npu") for _ in range(2)]
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = x * 2
    dist.all_reduce(y)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(part, x)
    z = y + 1
    dist.send(x, 1) if rank == 0 else dist.recv(came, 0)
    dist.gather(x, rows if rank == 0 else None, 0)
    dist.scatter(own, rows if rank == 0 else None, 0)
out = {"captured": whole.tolist()}
x.fill_(10.0 * (rank + 1))
graph.replay()
out["replayed"] = [y.tolist(), whole.tolist(), part.tolist(), z.tolist()]
out["one by one"] = [came.tolist(), [row.tolist() for row in rows], own.tolist()]
print(json.dumps(out))
dist.destroy_process_group()
"""

SLEEP = """
import sys, types; sys.modules['vllm_ascend'] = types.ModuleType('vllm_ascend', '')
sys.modules['vllm_ascend'].__path__ = []
import json, torch, torch_npu
import vllm_ascend.vllm_ascend_C as library
from torch_npu.npu import memory
kept, said = {}, {}
library.init_module(lambda handle: kept.__setitem__(handle[2], handle), lambda data: kept.pop(data))
pool = memory.MemPool(memory.NPUPluggableAllocator(None, "my_malloc", "my_free")._allocator)
with memory.use_mem_pool(pool):
    weight = torch.ones(4, 4, device="npu")
x, graph = torch.ones(1, 4, device="npu"), torch.npu.NPUGraph()
with torch.npu.graph(graph): y = x @ weight
def replayed():
    try: graph.replay()
    except RuntimeError as error: return str(error)
    return y.tolist()
said["awake"] = replayed()
(handle,) = kept.values()
library.python_unmap_and_release(*handle)
said["asleep"] = str(replayed())
library.python_create_and_map(*handle)
said["woken"] = str(replayed())
weight.fill_(2)
said["handed over"] = replayed()
print(json.dumps(said))
"""


def test_collectives_are_replayed_by_all_ranks(tmp_path: Path) -> None:
    found = results(start_ranks(RANKS, tmp_path))
    assert [rank["captured"] for rank in found] == [[0] * 4] * 2
    for number, rank in enumerate(found):
        assert rank["replayed"] == [[60, 60], [10, 10, 20, 20], [30], [61, 61]], number
        gathered = [[10, 10], [20, 20]] if number == 0 else [[0, 0], [0, 0]]
        assert rank["one by one"] == [[0, 0] if number == 0 else [10, 10], gathered, [10 * (number + 1)] * 2]


@pytest.fixture(scope="module")
def slept(python: Run) -> dict[str, dict[str, Any]]:
    """Return the results of a graph whose weight sleeps, by VIRTUAL_ASCEND_GRAPHS."""
    found = {}
    for mode in ("told", "strict"):
        done = python(SLEEP, VIRTUAL_ASCEND_GRAPHS=mode)
        assert done.returncode == 0, done.stderr
        found[mode] = json.loads(done.stdout) | {"stderr": done.stderr}
    return found


def test_a_replay_on_memory_that_sleeps_computes_with_nan_and_says_so(slept: dict[str, dict[str, Any]]) -> None:
    told = slept["told"]
    assert (told["awake"], told["handed over"]) == ([[4] * 4], [[8] * 4])
    assert told["asleep"] == told["woken"] == str([[float("nan")] * 4])
    assert told["stderr"].count("argument mat2 of aten::mm (Float [4, 4]), unmapped at <string>:") == 1


def test_strict_is_an_error_until_it_is_fixed(slept: dict[str, dict[str, Any]]) -> None:
    strict = slept["strict"]
    assert "(VIRTUAL_ASCEND_GRAPHS=strict)" in strict["asleep"]
    assert strict["woken"] == str([[float("nan")] * 4])  # its memory is there, and new
    assert strict["handed over"] == [[8] * 4]
