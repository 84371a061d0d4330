"""The ledger: each block with its holder, each operator with its cost, each message with its size."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, torch, torch_npu
from torch.nn import functional
from virtual_ascend.device.extension import extension
e = extension()
torch.ones(4, device="npu")
e.start_ledger(1e12, 1e9)
x = torch.ones(64, 128, device="npu"); w = torch.ones(128, 32, device="npu")
e.take_ledger()
y = x @ w
first = e.take_ledger()[0]
y.untyped_storage().resize_(0); y.untyped_storage().resize_(64 * 32 * 4)
e.mark_in_ledger(x.untyped_storage().data_ptr(), 3)
e.mark_in_ledger(12345, 3)
blocks = e.ledger_blocks()
q = torch.ones(1, 2, 16, 8, device="npu", dtype=torch.bfloat16, requires_grad=True)
e.take_ledger()
functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
attention = {name: flops for name, _, flops, *_ in e.take_ledger()[0] if "attention" in name}
host = torch.ones(1000).npu(); work = {name: size for name, _, _, size, _ in e.take_ledger()[0]}
v = x.view(-1); views = [name for name, *_ in e.take_ledger()[0]]
print(json.dumps({"matrix": first, "blocks": blocks, "attention": attention, "copied": work, "views": views}))
"""


@pytest.fixture(scope="module")
def seen(python: Run) -> dict[str, Any]:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_matrix_product_has_its_flops_and_bytes(seen: dict[str, Any]) -> None:
    [[name, calls, flops, size, seconds]] = seen["matrix"]
    moved = 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert (name, calls, flops, size) == ("aten::mm", 1, 2 * 64 * 128 * 32, moved)
    assert seconds == pytest.approx(moved / 1e9)  # its memory takes longer than its products


def test_blocks_have_their_size_lifetime_and_holder(seen: dict[str, Any]) -> None:
    x, w, y, again = seen["blocks"]
    assert [block[0] for block in (x, w, y, again)] == [64 * 128 * 4, 128 * 32 * 4, 64 * 32 * 4, 64 * 32 * 4]
    assert [block[3] for block in (x, w, y, again)] == [3, 0, 0, 2]
    assert y[1] < y[2] < again[1]
    assert x[2] == again[2] == 0


def test_attention_costs_half_if_it_is_causal_and_more_backward(seen: dict[str, Any]) -> None:
    forward = 4 * 2 * 16 * 16 * 8 / 2
    assert seen["attention"] == {"attention": forward, "attention backward": 2.5 * forward}


def test_copies_from_the_host_are_told(seen: dict[str, Any]) -> None:
    assert seen["copied"]["copy between host and NPU"] == 4000


def test_views_cost_nothing(seen: dict[str, Any]) -> None:
    assert seen["views"] == []


SITES = """
import json, sys, torch, torch_npu
from virtual_ascend import ledger
sites = []
def site():
    frame, names = sys._getframe().f_back, []
    while frame: names.append(frame.f_code.co_name); frame = frame.f_back
    sites.append(names)
    return len(sites) - 1
def make(): return torch.ones(64, 64, device="npu", requires_grad=True)
ledger.start(1.0, 1.0, site)
make().exp().sum().backward()
print(json.dumps([sites[block.site] for block in ledger.blocks()]))
"""


def test_a_block_has_the_site_that_the_program_was_at(python: Run) -> None:
    done = python(SITES)
    assert done.returncode == 0, done.stderr[-2000:]
    first, *_, last = json.loads(done.stdout.splitlines()[-1])
    assert first[:2] == ["make", "<module>"]
    # Gradients are computed in a thread of torch's own, which runs no Python.
    assert last == []


RANKS = """
import datetime, json, os, torch, torch.distributed as dist
from virtual_ascend.device.extension import extension
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
e = extension()
e.start_ledger(1e12, 1e9)
x = torch.ones(100, device="npu")
dist.all_reduce(x)
print(json.dumps([e.take_ledger()[1], e.groups_in_ledger(), [block[3] for block in e.ledger_blocks()]]))
os._exit(0)
"""


def test_messages_have_their_group_and_size(tmp_path: Any) -> None:
    for found in results(start_ranks(RANKS, tmp_path)):
        assert found == [[["all_reduce", 2, 1, 400]], 1, [1]]
