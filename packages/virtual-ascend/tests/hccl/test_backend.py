"""Collectives of two ranks give the right results; and the death of a rank is an error."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.hccl.backend import interface
from virtual_ascend.testing import results, start_ranks

NIGHTLY = pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/hccl")

START = """
import json, os, datetime, time, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
def start(backend, seconds=60):
    dist.init_process_group(backend, init_method=os.environ["INIT"], rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))
def new(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device="npu")
"""

COLLECTIVES = (
    START
    + """
start("hccl")
out = {}
for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
    x = new(rank + 1.0, 4.0); dist.all_reduce(x, getattr(dist.ReduceOp, name)); out[name] = x.tolist()
x = new(rank + 1.0, dtype=torch.bfloat16); dist.all_reduce(x); out["bfloat16"] = [x.item(), str(x.dtype)]
x = new(rank * 3, dtype=torch.int64); dist.all_reduce(x); out["int64"] = x.tolist()
w = dist.all_reduce(x := new(1.0), async_op=True); w.wait(); out["async"] = x.tolist()
if rank: time.sleep(0.5)
w = dist.all_reduce(x := new(3.0), async_op=True); torch.npu.synchronize(); out["synchronized"] = x.tolist()
future = dist.all_reduce(x := new(2.0), async_op=True).get_future(); future.wait()
out["future"] = [t.tolist() for t in future.value()]
x = new(float(rank)); dist.broadcast(x, 1); out["broadcast"] = x.tolist()
x = new(rank + 1.0); dist.reduce(x, 0); out["reduce"] = x.tolist() if rank == 0 else None
parts = [new(0.0) for _ in range(size)]; dist.all_gather(parts, new(rank + 5.0)); out["all_gather"] = [p.item() for p in parts]
parts = [new(0.0) for _ in range(size)]; dist.all_gather(parts, new(rank + 5.0).squeeze()); out["all_gather_scalar"] = [p.tolist() for p in parts]
x = new(0.0, 0.0); dist.all_gather_into_tensor(x, new(rank + 5.0)); out["all_gather_into_tensor"] = x.tolist()
parts = [new(0.0) for _ in range(size)] if rank == 0 else None
dist.gather(new(rank + 5.0), parts, dst=0); out["gather"] = [p.item() for p in parts] if parts else None
x = new(0.0); dist.scatter(x, [new(7.0), new(8.0)] if rank == 0 else None, src=0); out["scatter"] = x.tolist()
inputs = [new(rank + 1.0), new(rank + 10.0)]
x = new(0.0); dist.reduce_scatter(x, inputs); out["reduce_scatter"] = x.tolist(); out["untouched"] = [i.item() for i in inputs]
x = new(0.0); dist.reduce_scatter_tensor(x, new(rank + 1.0, rank + 10.0)); out["reduce_scatter_tensor"] = x.tolist()
x = new(0.0); dist.reduce_scatter_tensor(x, new(rank + 1.0, rank + 10.0), op=dist.ReduceOp.AVG)
out["reduce_scatter_average"] = x.tolist()
x = new(0.0, 0.0, 0.0, 0.0)[: 3 if rank else 2]
dist.all_to_all_single(x, new(*[10.0 * rank + i for i in range(2 + (not rank))]),
                       [1 + rank, 1] if not rank else [2, 1], [1, 2] if not rank else [1, 1])
out["all_to_all_single"] = x.tolist()
parts = [new(0.0), new(0.0)]; dist.all_to_all(parts, [new(rank * 10.0), new(rank * 10.0 + 1)])
out["all_to_all"] = [p.item() for p in parts]
x = new(41.0)
dist.send(x + 1, 1) if rank == 0 else dist.recv(x, 0)
out["recv"] = x.item() if rank else None
x = new(0.0); ops = [dist.P2POp(dist.isend, new(rank + 1.0), 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)]
for w in dist.batch_isend_irecv(ops): w.wait()
out["batch"] = x.item()
a, b = new(rank + 1.0), new(rank + 2.0)
with dist._coalescing_manager(device=torch.device("npu", rank)): dist.all_reduce(a); dist.all_reduce(b)
out["coalesced"] = [a.item(), b.item()]
things = [None] * size; dist.all_gather_object(things, {"rank": rank}); out["objects"] = things
dist.barrier()
alone = [dist.new_group([0]), dist.new_group([1])][rank]
x = new(rank + 1.0); dist.all_reduce(x, group=alone); out["subgroup"] = x.item()
try: dist.gather(new(1.0), [new(0.0)] * size if rank == 0 else None, group_dst=0)
except TypeError as error: out["group_dst"] = str(error)
for name in ("bool", "int16", "uint8"):
    x = new(rank, 1, dtype=getattr(torch, name)); dist.all_reduce(x); out[name] = [x.tolist(), str(x.dtype)]
x = new(rank, 4 + rank, dtype=torch.uint8); dist.all_reduce(x, op=dist.ReduceOp.AVG); out["whole average"] = x.tolist()
x = new(rank * 4, 4 + rank * 2, dtype=torch.int16); dist.all_reduce(x, op=dist.ReduceOp.AVG); out["average of int16"] = x.tolist()
for name in ("int16", "uint16", "uint32", "uint64", "float8_e5m2", "float64"):
    x = new(rank + 1, 7 - rank, dtype=torch.float64).to(getattr(torch, name)); own = x.clone(); dist.broadcast(own, 1)
    both = torch.empty(4, dtype=x.dtype, device="npu"); dist.all_gather_into_tensor(both, x)
    out["moved " + name] = [own.double().tolist(), both.double().tolist()]
parts = [new(0.0), new(0.0, 0.0)]; dist.all_gather(parts, new(*[rank + 1.0] * (rank + 1))); out["all_gather_uneven"] = [p.tolist() for p in parts]
import torch_npu
x = new(0.0, 0.0, 0.0); torch_npu.distributed.all_gather_into_tensor_uneven(x, new(*[rank + 1.0] * (rank + 1)), [1, 2]); out["gathered rows"] = x.tolist()
x = new(*[0.0] * (rank + 1)); torch_npu.distributed.reduce_scatter_tensor_uneven(x, new(1.0, 2.0, rank + 3.0), [1, 2]); out["scattered rows"] = x.tolist()
half = new(1.0, 2.0, 3.0, 4.0)[::2]
refused = {
    "premul": lambda: dist.all_reduce(new(1.0), op=dist._make_nccl_premul_sum(2.0)),
    "or": lambda: dist.all_reduce(new(1, dtype=torch.int32), op=dist.ReduceOp.BOR),
    "double": lambda: dist.all_reduce(new(1.0, dtype=torch.float64)),
    "byte": lambda: dist.reduce_scatter_tensor(new(0, dtype=torch.uint8), new(1, 2, dtype=torch.uint8)),
    "float8": lambda: dist.all_reduce(new(1.0).to(torch.float8_e5m2)),
    "unknown": lambda: dist.broadcast(new(1.0).to(torch.float8_e4m3fnuz), 0),
    "strided": lambda: dist.all_reduce(half),
    "anybody": lambda: dist.recv(new(1.0)),
    "sizes": lambda: dist.all_gather_into_tensor(new(1.0), new(1.0)),
    "splits": lambda: torch_npu.distributed.all_gather_into_tensor_uneven(new(1.0, 1.0, 1.0), new(1.0), [1, 1]),
}
out["refused"] = {}
for name, call in refused.items():
    try: call(); out["refused"][name] = "runs"
    except RuntimeError as error: out["refused"][name] = str(error).splitlines()[0]
print(json.dumps(out)); dist.destroy_process_group()
"""
)

# torch_npu's words, from ProcessGroupHCCL.cpp and HCCLUtils.cpp.
REFUSED = {
    "premul": "Cannot use ReduceOp.PREMUL_SUM with HCCL",
    "or": "Cannot use ReduceOp.BOR with HCCL",
    "double": "HCCL allreduce: Unsupported data type at::kDouble",
    "byte": "HCCL _reduce_scatter_base: Unsupported data type at::kByte/at::kBool",
    "float8": "HCCL allreduce: Unsupported data type Float8_e5m2",
    "unknown": "Unsupported data type for HCCL process group",
    "strided": "Tensors must be contiguous",
    "anybody": "ProcessGroupHCCL does not support recv",
    "sizes": "output tensor size must be equal to world_size times input tensor size",
    "splits": "Split sizes doesn't match total dim 0 size",
}

EXPECTED: dict[str, list[Any]] = {
    "SUM": [[3, 8]] * 2,
    "AVG": [[1.5, 4]] * 2,
    "MAX": [[2, 4]] * 2,
    "MIN": [[1, 4]] * 2,
    "PRODUCT": [[2, 16]] * 2,
    "bfloat16": [[3, "torch.bfloat16"]] * 2,
    "int64": [[3]] * 2,
    "async": [[2]] * 2,
    "future": [[[4]]] * 2,
    "synchronized": [[6]] * 2,
    "broadcast": [[1]] * 2,
    "reduce": [[3], None],
    "all_gather": [[5, 6]] * 2,
    "all_gather_scalar": [[[5], [6]]] * 2,
    "all_gather_into_tensor": [[5, 6]] * 2,
    "gather": [[5, 6], None],
    "scatter": [[7], [8]],
    "reduce_scatter": [[3], [21]],
    "untouched": [[1, 10], [2, 11]],
    "reduce_scatter_tensor": [[3], [21]],
    "reduce_scatter_average": [[1.5], [10.5]],
    "all_to_all_single": [[0, 10], [1, 2, 11]],
    "all_to_all": [[0, 10], [1, 11]],
    "recv": [None, 42],
    "batch": [2, 1],
    "coalesced": [[3, 5]] * 2,
    "objects": [[{"rank": 0}, {"rank": 1}]] * 2,
    "subgroup": [1, 2],
    "bool": [[[True, True], "torch.bool"]] * 2,
    "int16": [[[1, 2], "torch.int16"]] * 2,
    "uint8": [[[1, 2], "torch.uint8"]] * 2,
    "whole average": [[0, 4]] * 2,
    "average of int16": [[2, 5]] * 2,
    **{
        f"moved {name}": [[[2, 6], [1, 7, 2, 6]]] * 2
        for name in ("int16", "uint16", "uint32", "uint64", "float8_e5m2", "float64")
    },
    "all_gather_uneven": [[[1], [2, 2]]] * 2,
    "gathered rows": [[1, 2, 2]] * 2,
    "scattered rows": [[2], [4, 7]],
}


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results(start_ranks(COLLECTIVES, tmp_path_factory.mktemp("collectives")))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_collective_gives_each_rank_its_value(collectives: list[dict[str, Any]], name: str) -> None:
    assert [out[name] for out in collectives] == EXPECTED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_hccl_refuses_is_refused_in_its_words(collectives: list[dict[str, Any]], name: str) -> None:
    assert all(REFUSED[name] in out["refused"][name] for out in collectives)


def test_gather_takes_no_more_than_torch_npus(collectives: list[dict[str, Any]]) -> None:
    assert all("group_dst" in out["group_dst"] for out in collectives)


@pytest.mark.parametrize(
    "operation",
    [
        "dist.all_reduce(new(1.0))",
        pytest.param("dist.all_gather_into_tensor(new(0.0, 0.0), new(1.0))", marks=NIGHTLY),
    ],
)
def test_a_killed_rank_is_an_error_on_the_other_within_the_timeout(tmp_path: Path, operation: str) -> None:
    code = (
        START
        + f"""
import signal
start("hccl", seconds=20)
dist.all_reduce(new(1.0))
print("ready", flush=True)
if rank == 1: signal.pause()  # never joins: its parent kills it
try: {operation}
except Exception as error: print(json.dumps([type(error).__name__, str(error)]), flush=True); os._exit(0)
"""
    )
    survivor, victim = start_ranks(code, tmp_path)
    assert victim.stdout is not None
    while victim.stdout.readline() != "ready\n":  # gloo of some torch versions prints first
        assert victim.poll() is None
    time.sleep(0.5)  # the survivor is in the collective by now; if not, the error must come all the same
    victim.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    (kind, message), *_ = results([survivor], timeout=30)
    victim.communicate()
    assert time.monotonic() - killed < 20
    assert kind == "DistBackendError"
    assert "rank 0 of 2" in message
    assert operation[5:].split("(")[0] in message


LATE = (
    START
    + """
import time
start("hccl")
dist.all_reduce(new(1.0))
# The ranks come at different times, so that only what follows has little of it.
short = dist.new_group(timeout=datetime.timedelta(seconds=3))
if rank == 1: time.sleep(8); print("null", flush=True); os._exit(0)
began = time.monotonic()
try: {operation}
except Exception as error: print(json.dumps([str(error), time.monotonic() - began]), flush=True); os._exit(0)
"""
)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("broadcast from rank 1", "dist.broadcast(new(1.0), 1, group=short)"),
        pytest.param(
            "all_reduce", "work = dist.all_reduce(new(1.0), group=short, async_op=True); time.sleep(60)", marks=NIGHTLY
        ),
        pytest.param("recv from rank 1", "dist.recv(new(1.0), 1, group=short)", marks=NIGHTLY),
    ],
    ids=["waited for", "not waited for", "a message"],
)
def test_the_watchdog_takes_a_process_down_whose_rank_never_comes(tmp_path: Path, name: str, operation: str) -> None:
    waiting, late = start_ranks(LATE.format(operation=operation), tmp_path)
    _, stderr = waiting.communicate(timeout=300)
    late.communicate(timeout=300)
    assert waiting.returncode == -signal.SIGABRT
    assert (
        f"[Rank 0] Watchdog caught collective operation timeout: hccl (virtual Ascend, gloo): rank 0 of 2: {name}"
        in stderr
    )
    assert "we are taking the entire process down" in stderr


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/hccl", "packages/virtual-ascend/virtual_ascend/device/csrc"
)
@pytest.mark.parametrize("switch", ["HCCL_ASYNC_ERROR_HANDLING=0", "HCCL_BLOCKING_WAIT=1"])
def test_without_the_watchdog_it_is_an_error_after_the_timeout(tmp_path: Path, switch: str) -> None:
    variable, _, value = switch.partition("=")
    ranks = start_ranks(
        LATE.format(operation="dist.broadcast(new(1.0), 1, group=short)"), tmp_path, **{variable: value}
    )
    (message, seconds), _ = results(ranks, timeout=60)
    assert "rank 0 of 2: broadcast from rank 1 failed" in message
    assert seconds < 7


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/hccl", "packages/virtual-ascend/virtual_ascend/device/csrc"
)
def test_the_watchdog_lets_a_group_go_that_is_destroyed(tmp_path: Path) -> None:
    code = (
        START
        + """
import time
start("hccl", seconds=60)
group = dist.new_group(timeout=datetime.timedelta(seconds=3))
dist.all_reduce(new(1.0), group=group)
if rank == 0:
    work = dist.all_reduce(new(1.0), group=group, async_op=True)
    try: work.wait(datetime.timedelta(seconds=1))
    except Exception as error: print("in time", flush=True)
    dist.destroy_process_group(group)
    del group, work
time.sleep(6)
print("null")
"""
    )
    assert results(start_ranks(code, tmp_path)) == [None, None]


SHAPES = (
    START
    + """
start("hccl")
out = {}
def shape(name, operation, *tensors):
    try: operation(*tensors); out[name] = tensors[0].flatten().tolist()
    except Exception as error: out[name] = f"{type(error).__name__}: {error}".splitlines()[0]
def fill(*extents, dtype=torch.float32):
    return torch.full(extents, rank + 1, dtype=dtype, device="npu")
gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
shape("2-D into 1-D", gather, torch.empty(12, device="npu"), fill(2, 3))
shape("1-D into 3-D", gather, torch.empty(2, 3, 2, device="npu"), fill(6))
shape("a scalar into 1-D", gather, torch.empty(2, device="npu"), fill())
shape("1-D scattered to 2-D", scatter, torch.empty(3, 4, device="npu"), torch.arange(24.0, device="npu"))
shape("3-D scattered to 1-D", scatter, torch.empty(3, device="npu"), fill(2, 3, 1))
shape("int16 scattered", scatter, torch.empty(2, 1, device="npu", dtype=torch.int16), fill(4, dtype=torch.int16))
shape("bool gathered", gather, torch.empty(2, 2, device="npu", dtype=torch.bool), fill(2, dtype=torch.bool))
shape("too few", gather, torch.empty(11, device="npu"), fill(2, 3))
shape("too many", scatter, torch.empty(3, 4, device="npu"), torch.ones(25, device="npu"))
shape("other dtypes", gather, torch.empty(12, device="npu", dtype=torch.int32), fill(6))
shape("exchange of other sizes", dist.all_to_all_single, torch.empty(6, device="npu"), fill(4))
def coalesced(operation, *pairs):
    with dist._coalescing_manager(device=torch.device("npu", rank)):
        for output, given in pairs: operation(output, given)
one, other = torch.empty(2, 2, device="npu"), torch.empty(4, device="npu")
coalesced(gather, (one, fill(2)), (other, fill(1, 2))); out["coalesced gather"] = [*one.flatten().tolist(), *other.tolist()]
one, other = torch.empty(2, 1, device="npu"), torch.empty(1, device="npu")
coalesced(scatter, (one, fill(4)), (other, fill(2, 1))); out["coalesced scatter"] = [*one.flatten().tolist(), *other.tolist()]
shape("afterwards", dist.all_reduce, fill(1))
print(json.dumps(out))
"""
)

RIGHT: dict[str, list[Any]] = {
    "2-D into 1-D": [[1] * 6 + [2] * 6] * 2,
    "1-D into 3-D": [[1] * 6 + [2] * 6] * 2,
    "a scalar into 1-D": [[1, 2]] * 2,
    "1-D scattered to 2-D": [[2 * i for i in range(12)], [2 * i for i in range(12, 24)]],
    "3-D scattered to 1-D": [[3] * 3] * 2,
    "int16 scattered": [[3] * 2] * 2,
    "bool gathered": [[True] * 4] * 2,
    "coalesced gather": [[1, 1, 2, 2] * 2] * 2,
    "coalesced scatter": [[3] * 3] * 2,
    "afterwards": [[3]] * 2,
}
WRONG = {
    "too few": "output tensor size must be equal to world_size times input tensor size",
    "too many": "input tensor must be the same size as output size times world size",
    "other dtypes": "output tensor must have the same type as input tensor",
    "exchange of other sizes": "Error",
}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results(start_ranks(SHAPES, tmp_path_factory.mktemp("shapes")))


@pytest.mark.parametrize("name", RIGHT)
def test_a_collective_takes_any_shape_of_the_right_size(shapes: list[dict[str, Any]], name: str) -> None:
    assert [out[name] for out in shapes] == RIGHT[name]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_size_is_an_error_and_ends_no_process(shapes: list[dict[str, Any]], name: str) -> None:
    assert all(WRONG[name] in out[name] for out in shapes)


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/hccl", "packages/virtual-ascend/virtual_ascend/device/csrc"
)
def test_a_collective_that_ends_while_the_interpreter_does_takes_nothing_down(tmp_path: Path) -> None:
    # Gloo's thread drops the tensor last. Python knows its storage, so freeing it takes the lock, which rank 0 never
    # gives back before it ends. torch's own gloo aborts here with "terminate called without an active exception".
    code = (
        START
        + """
import sys
start("cpu:gloo,npu:hccl")
dist.all_reduce(new(1.0))
x = new(1.0); x.untyped_storage().note = x.note = "known to Python"
sys.setswitchinterval(1000)
if rank == 1:
    import time; time.sleep(1)
work = dist.all_reduce(x, async_op=True)
if rank == 1: work.wait()
print("null", flush=True)
del work, x
if rank == 0: sum(range(10**8))
"""
    )
    assert results(start_ranks(code, tmp_path)) == [None, None]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, None),
        ({"HCCL_SOCKET_IFNAME": "eth"}, "eth0"),
        ({"HCCL_SOCKET_IFNAME": "ib,enp6"}, "enp61s0f0"),
        ({"HCCL_SOCKET_IFNAME": "=eth1"}, "eth1"),
        ({"HCCL_SOCKET_IFNAME": "=eth"}, None),
        ({"HCCL_SOCKET_IFNAME": "^eth"}, "enp61s0f0"),
        ({"HCCL_SOCKET_IFNAME": "^=eth0"}, "eth1"),
        ({"HCCL_SOCKET_IFNAME": "of-the-cluster"}, None),
        ({"HCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth1"}, "eth0"),
        ({"HCCL_SOCKET_IFNAME": "of-the-cluster", "GLOO_SOCKET_IFNAME": "eth1"}, "eth1"),
    ],
)
def test_the_network_interface_is_the_one_that_hccl_would_take(asked: dict[str, str], chosen: str | None) -> None:
    assert interface(asked, ["lo", "eth0", "eth1", "enp61s0f0"]) == chosen
