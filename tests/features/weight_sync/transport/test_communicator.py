"""The process group that moves weights: its watchdog must never be faster than our own error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testing.ranks import Run

from verl_npu import reporting
from verl_npu.ascend.variables import Timeouts
from verl_npu.errors import GroupError
from verl_npu.features.weight_sync.transport.communicator import group_timeout


@given(
    st.floats(1e-6, 1 << 20),
    st.none() | st.integers(0, 20_000).map(str) | st.text(max_size=5),
    st.none() | st.integers(120, 7200).map(str),
)
@example(60.0, "1E100", None)
def test_the_group_waits_longer_than_its_ranks_and_than_hccl_or_is_not_made(
    timeout: float, execution: str | None, connect: str | None
) -> None:
    variables = {"HCCL_EXEC_TIMEOUT": execution, "HCCL_CONNECT_TIMEOUT": connect}
    hccl = Timeouts.read({name: text for name, text in variables.items() if text is not None})
    try:
        found = group_timeout(timeout, hccl)
    except GroupError:
        assert 2**31 <= hccl.execution < float("inf")
        return
    assert found > 3 * timeout
    assert hccl.execution == float("inf") or found > hccl.execution + hccl.connect


@pytest.mark.parametrize("name", ["HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT"])
def test_a_time_out_that_nothing_can_be_added_to_is_refused_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1E100")
    with pytest.raises(GroupError, match=f"{name}=1E100: expected at most 2147483647 seconds; found 1e\\+100"):
        group_timeout(60.0, Timeouts.read(os.environ))


def test_a_rank_that_waits_longer_than_hccl_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reporting._said.clear()
    group_timeout(600.0, Timeouts(connect=120, execution=300))
    assert "HCCL gives up after HCCL_EXEC_TIMEOUT=300 s" in capsys.readouterr().err
    group_timeout(600.0, Timeouts.read({}))
    assert capsys.readouterr().err == ""


@pytest.mark.virtual
def test_ranks_that_hccl_cannot_connect_are_named(run_ranks: Run, tmp_path: Path) -> None:
    program = """
from verl_npu.features.weight_sync.transport import communicator
def connect(*arguments): raise RuntimeError("EI0006: Getting socket times out\\nC++ frames")
communicator.connect = connect
try: meet()
except WeightSyncError as error: tell(error=str(error))
"""
    errors = [rank.facts["error"] for rank in run_ranks(program, tmp_path, LIMIT="5")]
    named = [error for error in errors if "HCCL cannot connect rank 0 (" in error]
    assert named
    assert all(": EI0006: Getting socket times out;" in error for error in named)
    # A rank that comes to the store after rank 0 has ended finds that instead.
    assert all(error in named or "is gone (at" in error for error in errors)
