"""A job is stopped if a node that it uses is lost; a spare one that it does not use is only said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_npu.launch import roll
from verl_npu.launch.attempt import run_once

from .stored import Stored, leader, member, node

NAMES = ("n1", "n2", "n3")


class Job:
    """A job that ends with 0 after some looks, of which the third loses nodes; with 9 if it is stopped."""

    def __init__(self, board: Stored, lost: set[str], looks: int = 8) -> None:
        self.board, self.lost, self.looks, self.stopped = board, lost, looks, False

    def submit_job(self, *, entrypoint: str, submission_id: str) -> str:
        return submission_id

    def get_job_info(self, job_id: str) -> SimpleNamespace:
        self.looks -= 1
        if self.looks == 5:
            self.board.there = [node(name, name not in self.lost) for name in NAMES]
        ended = self.looks <= 0 or self.stopped
        status = ("STOPPED" if self.stopped else "SUCCEEDED") if ended else "RUNNING"
        return SimpleNamespace(status=status, message="", driver_exit_code=9 * self.stopped if ended else None)

    def stop_job(self, job_id: str) -> bool:
        self.stopped = True
        return True


Ran = tuple[int, list[str], list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a job for two nodes on three; return its status, the names of those that were lost, and what was said."""
    monkeypatch.setattr(roll, "listens", lambda address, port: True)

    def call(used: set[str], lost: set[str], nodes: tuple[str, ...] = NAMES) -> Ran:
        board = Stored([member(name) for name in NAMES], [node(name) for name in NAMES], used)
        said: list[str] = []
        ended, losses = run_once(leader(board, said, 2, 1, tmp_path), Job(board, lost), 0, nodes)
        return ended.status, [each.name for each in losses], said

    return call


def test_a_spare_node_that_the_job_does_not_use_is_only_said(run: Callable[..., Ran]) -> None:
    status, lost, said = run(used={"n1", "n2"}, lost={"n3"})
    assert (status, lost) == (0, ["n3"])
    (line,) = [line for line in said if "LOST" in line]
    assert line.startswith("LOST: the node n3 (10.0.0.3): ")
    assert line.endswith("; the job does not use it, and goes on")


@pytest.mark.parametrize(
    ("used", "lost"), [({"n1", "n3"}, {"n3"}), (set(), {"n2", "n3"})], ids=["a used one", "too many"]
)
def test_the_loss_of_a_node_that_it_needs_stops_it(run: Callable[..., Ran], used: set[str], lost: set[str]) -> None:
    status, names, said = run(used=used, lost=lost)
    assert (status, {*names}) == (9, lost)
    assert any("is stopped" in line for line in said)
    assert not any(line.endswith("goes on") for line in said if "n3" in line)


def test_a_spare_node_that_came_while_the_job_runs_counts(run: Callable[..., Ran]) -> None:
    assert run(used={"n1", "n3"}, lost={"n2"}, nodes=("n1", "n2"))[0] == 0
    assert run(used={"n1", "n3"}, lost={"n3"}, nodes=("n1", "n2"))[:2] == (9, ["n3"])
