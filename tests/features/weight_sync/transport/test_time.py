"""A rank that dies, hangs or comes late is an error on every rank, in the promised time, and ends no process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ..ranks import Ended, Run
from ..scenarios import HUNG, KILLED, LATE, LIMIT, PROMISED

pytestmark = pytest.mark.virtual


def check(ended: list[Ended], named: str) -> None:
    """Each of these ranks lives, has an error that names a rank, and had it in time."""
    for rank in ended:
        assert rank.status == 0, rank.output
        assert named in rank.facts["error"], rank.facts
        assert rank.facts["broken"]
        assert rank.facts["seconds"] < PROMISED


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("victim", [0, 1], ids=["trainer", "rollout"])
def test_a_rank_that_is_killed_is_named_on_the_others(
    moment: str, victim: int, run_ranks: Run, tmp_path: Path
) -> None:
    ended = run_ranks(KILLED, tmp_path, size=3, VICTIM=str(victim), MOMENT=moment, LIMIT=str(LIMIT))
    assert ended[victim].status == -signal.SIGKILL
    check([rank for number, rank in enumerate(ended) if number != victim], f"rank {victim} (")
    if moment == "during":
        assert not ended[2].facts["usable"]


def test_an_engine_that_hangs_is_an_error_on_every_rank(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(HUNG, tmp_path, size=3, LIMIT=str(LIMIT), GROUP="mended")
    check(ended, "rank 1 (")
    assert not ended[1].facts["usable"]


def test_a_group_that_waits_no_longer_than_its_ranks_would_lose_the_process(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(HUNG, tmp_path, size=3, LIMIT="2", GROUP="shorter")
    assert ended[0].status == -signal.SIGABRT, ended[0].output
    assert "entire process down" in ended[0].output


def test_a_rank_that_comes_late_to_a_sync_is_an_error_on_every_rank(run_ranks: Run, tmp_path: Path) -> None:
    ended = run_ranks(LATE, tmp_path, size=3, LIMIT=str(LIMIT))
    check([ended[0], ended[2]], "rank 1 (")
    check([ended[1]], "rank 1 came late, when the others had given up on it")


def test_a_rank_that_comes_late_is_named_and_told(run_ranks: Run, tmp_path: Path) -> None:
    program = """
if RANK == 2:
    TIMEOUT = 3.0
    meeting_there = meeting()
    time.sleep(6)
try:
    if RANK == 2:
        join("weights", meeting_there, RANK, SIZE, timeout=TIMEOUT, device=DEVICE)
    else:
        meet()
except WeightSyncError as error:
    tell(error=str(error))
"""
    ended = run_ranks(program, tmp_path, size=3, LIMIT="2")
    assert all("rank 2 did not answer 'join' within 2 s" in rank.facts["error"] for rank in ended[:2]), ended
    assert "error" in ended[2].facts, ended[2]
    assert "came late" in ended[2].facts["error"] or "given up" in ended[2].facts["error"]
