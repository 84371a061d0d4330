from __future__ import annotations

import re
from dataclasses import replace

import pytest
from verl_npu_workbench import translations  # noqa: F401 - importing it registers the catalogue
from verl_npu_workbench.hanging.doing import Kind
from verl_npu_workbench.hanging.looking import Member
from verl_npu_workbench.hanging.verdict import Verdict, judge

from verl_npu.language import speaking, translate


def member(rank: int = -1, kind: Kind = Kind.COLLECTIVE, **facts: object) -> Member:
    plain = Member(
        host="a",
        pid=100 + rank,
        parent=1,
        title="ray::WorkerDict.update_actor",
        began=1,
        rank=rank,
        size=4 if rank >= 0 else 0,
        local=0,
        group="10.0.0.1:29500",
        state="S",
        busy=0.0,
        moved=False,
        kind=kind,
        call="all_reduce",
        place="step (verl/fsdp.py:7)",
        text="",
        stack=(),
        problem="",
    )
    return replace(plain, **facts)  # type: ignore[arg-type]


def ranks(*last: Member) -> list[Member]:
    """Return four ranks in one collective, of which the given ones do something else."""
    found = {each: member(each) for each in range(4)} | {each.rank: each for each in last}
    return [*found.values()]


def odd(members: list[Member], whole: bool = True) -> tuple[Verdict, list[int]]:
    said = judge(members, whole)
    return said.verdict, [each.rank for each in said.odd]


def test_a_stopped_process_is_the_one_whatever_the_others_do() -> None:
    said = judge(ranks(member(2, state="T"), member(3, Kind.CODE, busy=0.9)))
    assert (said.verdict, [each.rank for each in said.odd]) == (Verdict.HANGS, [2])
    assert "kill -CONT 102" in said.to_do


def test_a_rank_without_a_process_is_named() -> None:
    said = judge(ranks()[:3])
    assert said.verdict is Verdict.HANGS
    assert "rank 3 of 4" in said.why


def test_a_process_that_has_ended_and_was_not_buried_is_none() -> None:
    assert judge(ranks(member(3, Kind.IDLE, state="Z"))).verdict is Verdict.HANGS


def test_ranks_that_may_be_on_hosts_that_gave_no_answer_are_not_missed() -> None:
    assert "is gone" not in judge(ranks()[:3], whole=False).why


def test_a_rank_that_was_not_called_is_the_one() -> None:
    assert odd(ranks(member(1, Kind.IDLE))) == (Verdict.HANGS, [1])


def test_a_rank_that_waits_for_a_lock_is_the_one() -> None:
    assert odd(ranks(member(1, Kind.LOCK))) == (Verdict.HANGS, [1])


def test_the_rank_in_another_collective_is_the_one() -> None:
    assert odd(ranks(member(2, place="validate (verl/fsdp.py:9)"))) == (Verdict.HANGS, [2])


@pytest.mark.parametrize("kind", [Kind.SLEEP, Kind.OUTSIDE, Kind.DEVICE, Kind.CODE, Kind.PROCESS])
def test_a_rank_that_may_come_yet_is_no_hang(kind: Kind) -> None:
    assert odd(ranks(member(1, kind))) == (Verdict.STANDS, [1])


def test_ranks_that_are_all_in_one_collective_are_no_hang() -> None:
    assert judge(ranks()).verdict is Verdict.STANDS


@pytest.mark.parametrize("facts", [{"busy": 0.9, "kind": Kind.CODE}, {"moved": True, "busy": 0.1}])
def test_a_process_that_got_on_is_slow_work(facts: dict[str, object]) -> None:
    assert odd(ranks(member(1, **facts))) == (Verdict.WORKS, [1])  # type: ignore[arg-type]


def test_a_rank_that_only_polls_stands_still() -> None:
    assert judge(ranks(member(1, Kind.SLEEP, moved=True, busy=0.001))).verdict is Verdict.STANDS


def test_a_launcher_that_looks_after_its_ranks_does_not_work() -> None:
    launcher = member(-1, Kind.CODE, pid=1, parent=0, title="torchrun", moved=True, busy=0.5)
    assert judge([launcher, *ranks(member(1, Kind.IDLE))]).verdict is Verdict.HANGS


def test_a_worker_of_the_data_loader_is_named_beside_its_rank() -> None:
    loader = member(1, Kind.SLEEP, pid=7, parent=101, place="__getitem__ (data.py:3)")
    said = judge([*ranks(member(1, Kind.PROCESS)), loader])
    assert [each.pid for each in said.odd] == [101, 7]
    assert "__getitem__ (data.py:3)" in said.why


def test_actors_that_wait_for_each_other_are_a_deadlock() -> None:
    driver = member(-1, Kind.RAY, pid=1, title="main.py")
    assert judge([driver, member(-1, Kind.RAY, pid=2)]).verdict is Verdict.HANGS


def test_a_driver_that_waits_for_a_worker_that_computes_is_none() -> None:
    driver = member(-1, Kind.RAY, pid=1, title="main.py")
    assert judge([driver, member(-1, Kind.DEVICE, pid=2)]).verdict is Verdict.STANDS


def test_actors_that_wait_for_each_other_may_wait_for_a_host_that_was_not_seen() -> None:
    assert judge([member(-1, Kind.RAY, pid=2)], whole=False).verdict is Verdict.STANDS


def test_without_stacks_there_is_no_verdict() -> None:
    said = judge(ranks(*(member(rank, Kind.UNSEEN, problem="py-spy is not installed") for rank in range(4))))
    assert said.verdict is Verdict.UNKNOWN
    assert "pip install py-spy" in said.to_do


def test_no_work_at_all_is_idle() -> None:
    assert judge([member(-1, Kind.IDLE)]).verdict is Verdict.IDLE


JOBS: dict[str, list[Member]] = {
    "stopped": ranks(member(2, state="T")),
    "a rank is gone": ranks()[:3],
    "nobody can be looked into": [member(0, Kind.UNSEEN, problem="x", busy=0.9)],
    "slow": ranks(member(1, Kind.CODE, busy=0.9)),
    "a rank was not called": ranks(member(1, Kind.IDLE)),
    "a rank waits for a lock": ranks(member(1, Kind.LOCK)),
    "a rank waits for its NPU": ranks(member(1, Kind.DEVICE)),
    "another collective": ranks(member(1, call="broadcast", place="step (verl/fsdp.py:9)")),
    "one collective": ranks(),
    "a lock": [member(kind=Kind.LOCK)],
    "actors": [member(kind=Kind.RAY, call="ray.get"), member(kind=Kind.RAY, pid=7)],
    "an NPU": [member(kind=Kind.DEVICE)],
    "idle": [member(kind=Kind.IDLE)],
}


@pytest.mark.parametrize("members", JOBS.values(), ids=JOBS.keys())
def test_what_is_said_of_a_job_is_said_in_chinese_and_written_in_english(members: list[Member]) -> None:
    said = judge(members)
    texts = [said.verdict.value, said.why, said.to_do]
    assert all(text.isascii() for text in texts)
    with speaking("zh_CN"):
        shown = [translate(text) for text in texts]
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in shown)
    assert re.search(r"\b(the|it|and|waits|others)\b", " ".join(shown)) is None, shown
