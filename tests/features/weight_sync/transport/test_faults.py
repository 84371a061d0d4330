"""What one rank says is wrong ends on every rank, with an error that names the rank or the parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..ranks import Run
from ..scenarios import UNANNOUNCED

pytestmark = pytest.mark.virtual

GIVEN = """
given = {f"layer.{i}.weight": torch.full((256, 256), float(i), device=DEVICE) for i in range(16)}
small = Settings(bucket_bytes=1 << 19)
"""


def disagreeing(change: str) -> str:
    return (
        GIVEN
        + f"""
group, engine = meet(), Engine()
sync(group, given, engine, small)
if RANK == 1:
    engine.loads = 0
{change}
try:
    sync(group, given, engine, small)
except WeightSyncError as error:
    tell(error=str(error), loads=engine.loads, usable=engine.usable)
given = {{"layer.0.weight": torch.ones(2, device=DEVICE)}}
sync(group, given, engine, small)
tell(after=float(engine.held["layer.0.weight"][0]) if RANK else 1.0)
group.close()
"""
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("if RANK: given['layer.3.weight'] = torch.zeros(2, 3, device=DEVICE)", "layer.3.weight: rank 0"),
        ("if not RANK: given['layer.3.weight'] = given['layer.3.weight'].half()", "layer.3.weight: rank 0"),
        ("if not RANK: del given['layer.7.weight']", "layer.7.weight: rank 1"),
        ("if not RANK: given['extra'] = torch.ones(1, device=DEVICE)", "extra: rank 0"),
    ],
    ids=["shape", "dtype", "missing", "extra"],
)
def test_a_parameter_that_differs_is_named_on_all_ranks_and_nothing_is_loaded(
    change: str, named: str, run_ranks: Run, tmp_path: Path
) -> None:
    ended = run_ranks(disagreeing(change), tmp_path)
    assert [rank.status for rank in ended] == [0, 0], ended[0].output + ended[1].output
    assert all(named in rank.facts["error"] for rank in ended), [rank.facts for rank in ended]
    assert ended[1].facts["loads"] == 0
    # The group is as it was: what was refused had not begun.
    assert all(rank.facts["after"] == 1.0 for rank in ended)


def test_a_parameter_that_is_not_as_announced_ends_the_sync_on_all_ranks(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(UNANNOUNCED, tmp_path)
    said = "layer.9.weight: expected float32[256, 256] as announced, found layer.9.weight float32[1, 256]"
    assert all(said in rank.facts["error"] for rank in ended), ended
    assert ended[1].facts["loads"] > 0
    assert not ended[1].facts["usable"]
    assert all(rank.facts["seconds"] < 30 for rank in ended), ended  # and not the 60 s that they may wait
    # Other trainers gather their shards together with this one: it draws on to the end.
    assert ended[0].facts["drawn"] == 16


def test_a_rank_that_cannot_begin_says_so_on_all_ranks(run_ranks: Run, tmp_path: Path) -> None:
    program = """
group, engine = meet(), Engine()
given = {"w": torch.ones(2, device=DEVICE)}
try:
    if RANK == 1:
        with preparing(group):
            raise KeyError("no model here")
    sync(group, given, engine)
except (WeightSyncError, KeyError) as error:
    tell(error=str(error))
"""
    for rank in run_ranks(program, tmp_path):
        assert "no model here" in rank.facts["error"]


def test_a_port_in_use_is_named(run_ranks: Run, tmp_path: Path) -> None:
    program = """
import socket
taken = socket.socket()
taken.bind(("0.0.0.0", 0)); taken.listen()
port = taken.getsockname()[1]
try:
    open_meeting("127.0.0.1", port, 5.0)
except WeightSyncError as error:
    tell(error=str(error), port=port)
"""
    (rank,) = run_ranks(program, tmp_path, size=1)
    assert f"127.0.0.1:{rank.facts['port']} cannot be served" in rank.facts["error"]


def test_a_group_made_twice_is_refused(run_ranks: Run, tmp_path: Path) -> None:
    program = """
group = meet()
try:
    join("weights", Meeting("127.0.0.1", 1, Secret(b"")), RANK, SIZE, timeout=5, device=DEVICE)
except WeightSyncError as error:
    tell(error=str(error))
group.close()
try:
    find("weights")
except WeightSyncError as error:
    tell(closed=str(error))
"""
    for rank in run_ranks(program, tmp_path):
        assert "is in a group 'weights' already" in rank.facts["error"]
        assert "group 'weights': expected a group that this process has joined, found none" in rank.facts["closed"]
