"""libhccl.so: HCCL's own C functions between three processes, called as vllm-ascend's PyHccl calls them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

START = """
import ctypes, json, os, pathlib, time, torch
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
hccl = ctypes.CDLL(os.environ["HCCL_SO_PATH"])
hccl.HcclGetErrorString.restype = ctypes.c_char_p
def call(name, *arguments):
    code = getattr(hccl, name)(*arguments)
    if code: raise RuntimeError(hccl.HcclGetErrorString(code).decode())
class RootInfo(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 4108)]
root, meeting = RootInfo(), pathlib.Path(os.environ["INIT"].removeprefix("file://"))
def join():
    if rank == 0:
        call("HcclGetRootInfo", ctypes.byref(root))
        meeting.with_name("fresh").write_bytes(bytes(root)); meeting.with_name("fresh").rename(meeting)
    while not meeting.exists(): time.sleep(0.05)
    ctypes.memmove(ctypes.byref(root), meeting.read_bytes(), 4108)
    comm = ctypes.c_void_p()
    call("HcclCommInitRootInfo", size, ctypes.byref(root), rank, ctypes.byref(comm))
    return comm
def at(tensor): return ctypes.c_void_p(tensor.data_ptr())
def count(tensor): return ctypes.c_size_t(tensor.numel())
DTYPES = {torch.int8: 0, torch.int32: 2, torch.float16: 3, torch.float32: 4, torch.int64: 5, torch.bfloat16: 11}
stream = ctypes.c_void_p(0)
"""

COLLECTIVES = (
    START
    + """
comm = join()
out = {}
for dtype, number in DTYPES.items():
    for op, name in enumerate(("sum", "prod", "max", "min")):
        x = torch.tensor([rank + 1, 2], dtype=dtype, device="npu"); y = torch.zeros_like(x)
        call("HcclAllReduce", at(x), at(y), count(x), number, op, comm, stream)
        out.setdefault(name, []).append(y.tolist())
x = torch.full((1 << 20,), float(rank), device="npu")
call("HcclBroadcast", at(x), count(x), 4, 1, comm, stream); out["broadcast"] = [x.min().item(), x.max().item()]
x, parts = torch.tensor([rank + 5.0], device="npu"), torch.zeros(size, device="npu")
call("HcclAllGather", at(x), at(parts), count(x), 4, comm, stream); out["all_gather"] = parts.tolist()
x, part = torch.arange(size, dtype=torch.float32, device="npu") * (rank + 1), torch.zeros(1, device="npu")
call("HcclReduceScatter", at(x), at(part), count(part), 4, 0, comm, stream); out["reduce_scatter"] = part.tolist()
x = torch.tensor([41.0 + rank], device="npu")
if rank == 1: call("HcclSend", at(x), count(x), 4, 2, comm, stream)
if rank == 2: call("HcclRecv", at(x), count(x), 4, 1, comm, stream)
out["recv"] = x.tolist()
call("HcclBarrier", comm, stream)
found = [ctypes.c_uint32(), ctypes.c_uint32()]
call("HcclGetRankId", comm, ctypes.byref(found[0])); call("HcclGetRankSize", comm, ctypes.byref(found[1]))
out["who"] = [value.value for value in found]
try: call("HcclAllReduce", at(x), at(x), count(x), 10, 0, comm, stream)
except RuntimeError as error: out["double"] = str(error)
try: call("HcclSend", at(x), count(x), 4, 9, comm, stream)
except RuntimeError as error: out["rank 9"] = str(error)
call("HcclCommDestroy", comm)
print(json.dumps(out))
"""
)

EXPECTED: dict[str, list[Any]] = {
    "sum": [[[6, 6]] * 6] * 3,
    "prod": [[[6, 8]] * 6] * 3,
    "max": [[[3, 2]] * 6] * 3,
    "min": [[[1, 2]] * 6] * 3,
    "broadcast": [[1, 1]] * 3,
    "all_gather": [[5, 6, 7]] * 3,
    "reduce_scatter": [[0], [6], [12]],
    "recv": [[41], [42], [42]],
    "who": [[0, 3], [1, 3], [2, 3]],
    "double": ["not supported (virtual Ascend)"] * 3,
    "rank 9": ["parameter error (virtual Ascend)"] * 3,
}


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("abi")
    return results(start_ranks(COLLECTIVES, folder, 3, VIRTUAL_ASCEND="3", HCCL_SO_PATH=None))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_function_gives_each_rank_its_value(collectives: list[dict[str, Any]], name: str) -> None:
    assert [out[name] for out in collectives] == EXPECTED[name]


def test_a_rank_that_ends_is_an_error_on_the_other(tmp_path: Path) -> None:
    code = (
        START
        + """
comm = join()
if rank == 1: print("null", flush=True); os._exit(0)
x = torch.ones(4, device="npu")
try: call("HcclAllReduce", at(x), at(x), count(x), 4, 0, comm, stream)
except RuntimeError as error: print(json.dumps(str(error)))
"""
    )
    began = time.monotonic()
    message, _ = results(start_ranks(code, tmp_path, HCCL_SO_PATH=None))
    assert message == "tcp transfer error: a rank is gone (virtual Ascend)"
    assert time.monotonic() - began < 100


def test_a_rank_that_never_joins_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    code = (
        START
        + """
if rank == 1: print("null", flush=True); os._exit(0)
try: join()
except RuntimeError as error: print(json.dumps(str(error)))
"""
    )
    message, _ = results(start_ranks(code, tmp_path, HCCL_SO_PATH=None, HCCL_CONNECT_TIMEOUT="2"))
    assert message == "timeout: a rank did not arrive (virtual Ascend)"


def test_a_program_finds_it_by_its_bare_name_alone(python: Run) -> None:
    # vllm-ascend's find_hccl_library, where HCCL_SO_PATH is not set.
    code = """
        import ctypes, os, torch
        path = os.environ.pop("HCCL_SO_PATH")
        print(torch.version.cann is not None, bool(ctypes.CDLL("libhccl.so").HcclGetRootInfo))
        print(len({line.split()[-1] for line in open("/proc/self/maps") if "libhccl" in line}))
    """
    assert python(code).stdout.split() == ["True", "True", "1"]
