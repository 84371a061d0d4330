"""VIRTUAL_ASCEND_FAULTS and delayed copies under the real torch_npu, whose own code meets the faults."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

from ..test_copies import PROGRAM, WRONG

pytestmark = pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/real", "packages/virtual-ascend/virtual_ascend/faults.py"
)

FAULTS = "VIRTUAL_ASCEND_FAULTS"
# The wheel's `_foreach_copy_` waits despite its arguments.
AWAITED_BY_THE_WHEEL = {"foreach early"}

ONE_RANK = """
    import json, torch, torch_npu
    out = {"allocations": [], "operator": []}
    def attempt(call):
        try: return call() and "ok"
        except RuntimeError as error: return f"{type(error).__name__}: {error}"
    kept = []
    def allocate(megabytes):
        kept.append(torch.empty(megabytes << 20, dtype=torch.uint8, device="npu"))
        return True
    for _ in range(4): out["allocations"].append(attempt(lambda: allocate(30)))
    out["ooms"] = torch.npu.memory_stats()["num_ooms"]
    for size in (40, 70): out[size] = attempt(lambda: allocate(size))
    x, gain = torch.ones(4, 32, device="npu"), torch.ones(32, device="npu")
    for _ in range(3): out["operator"].append(attempt(lambda: bool(torch_npu.npu_rms_norm(x, gain)[0].sum() > 127)))
    out["operator of another rank"] = attempt(lambda: len(torch_npu.npu_swiglu(x)))
    print(json.dumps(out))
"""

GROUP = """
    import json, os, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    limit = timedelta(seconds=20)
    dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=2, timeout=limit)
    x = torch.full((250_000,), rank + 1.0, device="npu")
    dist.all_reduce(x)
    torch.npu.synchronize()
"""


@pytest.fixture(scope="module")
def one_rank(real: Run) -> dict[str, Any]:
    faults = (
        "oom:allocation=3",
        f"oom:above={64 / 1024}:rank=1",
        f"oom:above={33 / 1024}:rank=0",
        "fail:operator=npu_rms_norm:call=2",
        "fail:operator=npu_swiglu:rank=0",
    )
    done = real(ONE_RANK, RANK="1", **{FAULTS: ",".join(faults)})
    assert done.returncode == 0, done.stderr[-3000:]
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**out, "stderr": done.stderr}


def test_the_asked_allocation_is_out_of_memory_and_the_next_is_not(one_rank: dict[str, Any]) -> None:
    first, second, failed, fourth = one_rank["allocations"]
    assert first == second == fourth == "ok"
    assert failed.startswith("OutOfMemoryError: NPU out of memory. Tried to allocate 3")
    assert one_rank["ooms"] == 1
    assert f"bytes fails because of {FAULTS}" in one_rank["stderr"]


def test_allocations_above_a_size_are_out_of_memory_on_the_asked_rank_only(one_rank: dict[str, Any]) -> None:
    assert one_rank["40"] == "ok"
    assert one_rank["70"].startswith("OutOfMemoryError: NPU out of memory. Tried to allocate 7")


def test_an_operator_fails_at_the_asked_call_on_the_asked_rank_with_the_wheels_error(one_rank: dict[str, Any]) -> None:
    first, failed, third = one_rank["operator"]
    assert first == third == "ok"
    assert "call aclnnRmsNorm failed, error code is" in failed
    assert f"npu::npu_rms_norm: {FAULTS} made call 2 fail (virtual Ascend)" in failed
    assert one_rank["operator of another rank"] == "ok"


def test_an_operator_that_does_not_exist_is_refused(real: Run) -> None:
    done = real("import torch", **{FAULTS: "fail:operator=npu_rms_nrm"})
    assert done.returncode != 0
    assert "operator=npu_rms_nrm: expected an operator that torch_npu" in done.stderr
    assert "but npu_rms_norm" in done.stderr


def test_a_rank_dies_at_its_collective_and_the_other_does_not_go_on(settings: dict[str, str], tmp_path: Path) -> None:
    code = f"""{GROUP}
    dist.all_reduce(x)
    torch.npu.synchronize()
    print("went on", flush=True)
    """
    changes = {**settings, FAULTS: "die:collective=2:rank=1", "HCCL_EXEC_TIMEOUT": "5"}
    survivor, victim = start_ranks(code, tmp_path, **changes)
    out, err = survivor.communicate(timeout=120)
    _, last_words = victim.communicate(timeout=10)
    assert victim.returncode == -signal.SIGKILL
    assert f"virtual-ascend: fault: rank 1 dies at its collective 2 (HcclAllReduce) because of {FAULTS}" in last_words
    assert survivor.returncode != 0
    assert "went on" not in out, err[-2000:]


@pytest.mark.parametrize(("fault", "seconds"), [("slow:seconds=1.5:rank=0", 1.5), ("slow:bandwidth=0.0005", 2.0)])
def test_a_slow_link_delays_a_collective_and_leaves_its_values(
    settings: dict[str, str], tmp_path: Path, fault: str, seconds: float
) -> None:
    code = f"""{GROUP}
    began = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    issued = time.monotonic() - began
    work.wait(); torch.npu.synchronize()
    print(json.dumps([x[0].item(), issued, time.monotonic() - began]), flush=True)
    dist.destroy_process_group()
    """
    began = time.monotonic()
    for value, issued, took in results(start_ranks(code, tmp_path, **{**settings, FAULTS: fault})):
        assert value == 6
        # A million bytes at half a million a second, or one and a half seconds on one of the two.
        assert issued < seconds <= took + 0.01
    assert time.monotonic() - began > seconds


def test_only_what_was_not_waited_for_is_wrong(real: Run) -> None:
    done = real(PROGRAM, VIRTUAL_ASCEND_COPIES="delayed")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, good in found.items() if not good} == WRONG - AWAITED_BY_THE_WHEEL


def test_what_changes_a_tensor_in_place_waits_for_the_collective_that_writes_it(
    settings: dict[str, str], tmp_path: Path
) -> None:
    code = f"""{GROUP}
    dist.all_reduce(x)
    x.mul_(10)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    print(json.dumps(x[0].item()), flush=True)
    dist.destroy_process_group()
    """
    changes = {**settings, FAULTS: "slow:seconds=0.5"}
    assert results(start_ranks(code, tmp_path, **changes)) == [60.0, 60.0]
