"""Failures on request: the grammar, and each fault firing."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_ascend.errors import SettingError
from virtual_ascend.faults import Fault, Kind, parse, wrap
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

from ..hccl.test_backend import START

FAULTS = "VIRTUAL_ASCEND_FAULTS"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ()),
        (" , ", ()),
        ("die:collective=3:rank=1", (Fault(Kind.DIE, rank=1, collective=3),)),
        ("slow:seconds=0.5", (Fault(Kind.SLOW, seconds=0.5),)),
        ("slow:bandwidth=25:rank=1", (Fault(Kind.SLOW, rank=1, bandwidth=25.0),)),
        (
            "oom:allocation=7, oom:above=1.5:rank=0",
            (Fault(Kind.OUT_OF_MEMORY, allocation=7), Fault(Kind.OUT_OF_MEMORY, above=1.5, rank=0)),
        ),
        ("fail:operator=npu_rms_norm:call=2", (Fault(Kind.FAIL, operator="npu_rms_norm", call=2),)),
    ],
)
def test_faults_are_read(text: str, faults: tuple[Fault, ...]) -> None:
    assert parse(text) == faults


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("explode", "expected one of die, slow, oom, fail first; found 'explode'"),
        ("die", "expected die with collective= and optionally rank=; found only die"),
        ("die:collective=0", "expected collective to be a number from 1; found '0'"),
        ("die:collective=1:collective=2", "each once; found 'collective=2'"),
        ("die:seconds=1", "found 'seconds=1'"),
        ("slow:seconds=nan", "expected seconds to be a number above 0; found 'nan'"),
        ("slow:seconds", "found 'seconds'"),
        (
            "slow:seconds=1:bandwidth=1",
            "expected slow with seconds= or bandwidth= and optionally rank=; found seconds= and bandwidth=",
        ),
        (
            "oom:allocation=1:above=1",
            "expected oom with allocation= or above= and optionally rank=; found allocation= and above=",
        ),
        ("fail:operator=a b", "expected operator to be the name of an operator of torch_npu; found 'a b'"),
        ("die:collective=1:rank=-1", "expected rank to be a number from 0; found '-1'"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(SettingError) as error:
        parse(text)
    message = str(error.value)
    assert problem in message
    assert repr(text) in message
    assert "\n" not in message


@given(st.text(alphabet="dieslowomfa:=,.0123456789 rnk\n", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        faults = parse(text)
    except SettingError as error:
        message = str(error)
    else:
        assert len(faults) == len([item for item in text.split(",") if item.strip()])
        return
    assert len(message.splitlines()) == 1


def test_a_rank_dies_at_its_collective_and_the_other_gets_an_error(tmp_path: Path) -> None:
    code = (
        START
        + """
start("hccl", seconds=20)
for step in range(3):
    try: dist.all_reduce(new(1.0))
    except Exception as error: print(json.dumps([step, type(error).__name__, str(error)]), flush=True); os._exit(0)
"""
    )
    began = time.monotonic()
    survivor, victim = start_ranks(code, tmp_path, **{FAULTS: "die:collective=2:rank=1"})
    (step, kind, message), *_ = results([survivor], timeout=60)
    _, stderr = victim.communicate(timeout=10)
    assert time.monotonic() - began < 20 + 20
    assert (step, kind) == (1, "DistBackendError")
    assert "rank 0 of 2: all_reduce failed" in message
    assert victim.returncode == -signal.SIGKILL
    assert f"virtual-ascend: fault: rank 1 dies at its collective 2 (all_reduce) because of {FAULTS}" in stderr


def test_a_slow_link_delays_its_rank_and_leaves_the_values(tmp_path: Path) -> None:
    code = (
        START
        + """
import time
start("hccl")
dist.all_reduce(new(1.0))
began = time.monotonic()
w = dist.all_reduce(x := new(rank + 1.0), async_op=True)
issued = time.monotonic() - began
early = w.is_completed(); w.wait()
print(json.dumps([x.item(), issued, early, time.monotonic() - began]), flush=True); dist.destroy_process_group()
"""
    )
    (value, issued, early, seconds), (value_1, _, _, _) = results(
        start_ranks(code, tmp_path, **{FAULTS: "slow:seconds=1.5:rank=0"})
    )
    assert value == value_1 == 3
    assert not early
    assert issued < 1.5 <= seconds


def test_a_link_of_a_bandwidth_moves_one_message_after_the_other(tmp_path: Path) -> None:
    code = (
        START
        + """
import time
start("hccl")
many = [torch.ones(250_000, device=f"npu:{rank}") for _ in range(2)]
began = time.monotonic()
works = [dist.broadcast(x, 0, async_op=True) for x in many]
issued = time.monotonic() - began
works[0].wait(); first = time.monotonic() - began
works[1].wait()
print(json.dumps([issued, first, time.monotonic() - began]), flush=True); dist.destroy_process_group()
"""
    )
    # A million bytes each, at a million bytes a second.
    for issued, first, second in results(start_ranks(code, tmp_path, **{FAULTS: "slow:bandwidth=0.001"})):
        assert issued < 1 <= first < 2 <= second


ONE_RANK = """
import json, torch, torch_npu
out = {"allocations": [], "operator": []}
def attempt(call):
    try: call()
    except RuntimeError as error: return str(error)
    return "ok"
for _ in range(4): out["allocations"].append(attempt(lambda: torch.empty(8, device="npu")))
out["ooms"] = torch.npu.memory_stats()["num_ooms"]
for size in (1 << 20, (1 << 20) + 1, 1 << 19, (1 << 19) + 1):
    out[size] = attempt(lambda: torch.empty(size, dtype=torch.uint8, device="npu"))
for _ in range(3): out["operator"].append(attempt(lambda: torch_npu.npu_swiglu(torch.ones(2, 4, device="npu"))))
out["operator of another rank"] = attempt(lambda: torch_npu.npu_gelu(torch.ones(2, device="npu")))
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def one_rank(python: Run) -> dict[str, Any]:
    faults = (
        "oom:allocation=3",
        f"oom:above={1 / 1024}:rank=1",
        f"oom:above={0.5 / 1024}:rank=0",
        "fail:operator=npu_swiglu:call=2",
        "fail:operator=npu_gelu:rank=0",
    )
    result = python(ONE_RANK, RANK="1", **{FAULTS: ",".join(faults)})
    assert result.returncode == 0, result.stderr
    out: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return out


def test_the_asked_allocation_is_out_of_memory_and_the_next_is_not(one_rank: dict[str, Any]) -> None:
    first, second, failed, fourth = one_rank["allocations"]
    assert first == second == fourth == "ok"
    assert failed.startswith("NPU out of memory. Tried to allocate 512 bytes (NPU 0; ")
    assert f"because of {FAULTS}" in failed
    assert one_rank["ooms"] == 1


def test_allocations_above_a_size_are_out_of_memory_on_the_asked_rank_only(one_rank: dict[str, Any]) -> None:
    mebibyte = 1 << 20
    assert one_rank[str(mebibyte)] == one_rank[str(mebibyte // 2 + 1)] == "ok"
    assert "NPU out of memory. Tried to allocate 1.00 MiB" in one_rank[str(mebibyte + 1)]


def test_an_operator_fails_at_the_asked_call_on_the_asked_rank(one_rank: dict[str, Any]) -> None:
    failure = f"npu_swiglu: {FAULTS} made call 2 fail (virtual Ascend)"
    assert one_rank["operator"] == ["ok", failure, "ok"]
    assert one_rank["operator of another rank"] == "ok"


def test_an_operator_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        SettingError,
        match=r"operator=npu_gmm: virtual-ascend has no operator with this name; .*similar names: npu_gm",
    ):
        wrap({"npu_gm": len}, parse("fail:operator=npu_gmm"), lambda: 0)
