from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from verl_npu_workbench.prove.record import NotPossible, Recorder, Wrong, read
from verl_npu_workbench.prove.result import Verdict

from verl_npu.errors import CommandError

from .conftest import operator


def record(path: Path, name: str, tried, meaning: str = "", seconds: float = 3600.0) -> None:
    """Make one check as a process does: open the record, and close it."""
    with closing(Recorder(path, time.monotonic() + seconds, time.monotonic)) as recorder:
        recorder.check(name, tried, meaning)
        recorder.observe(operator())


def refuse() -> str:
    raise NotPossible("there is one NPU")


def differ() -> str:
    raise Wrong("3", "2", {"GB/s": 1.0})


def crash() -> str:
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("tried", "verdict", "found"),
    [
        (lambda: "right", Verdict.PASSED, "right"),
        (lambda: ("right", {"GB/s": 2.0}), Verdict.PASSED, "right"),
        (refuse, Verdict.NOT_POSSIBLE, "there is one NPU"),
        (differ, Verdict.FAILED, "3"),
        (crash, Verdict.FAILED, "ValueError: first line"),
        (lambda: ("right", {"GB/s": float("inf")}), Verdict.PASSED, "right"),
    ],
)
def test_a_check_is_written_down_as_it_ended(tried, verdict: Verdict, found: str, tmp_path: Path) -> None:
    record(tmp_path / "record", "one", tried, "sums are wrong")
    (check,) = read(tmp_path / "record").checks
    assert (check.verdict, check.found) == (verdict, found)
    assert check.meaning == ("sums are wrong" if verdict is Verdict.FAILED else "")


def test_what_an_earlier_process_ended_is_not_done_again(tmp_path: Path) -> None:
    made = []
    for number in range(2):
        record(tmp_path / "record", "one", lambda number=number: made.append(number) or "right")
    assert made == [0]
    assert len(read(tmp_path / "record").observations) == 1


def test_a_check_that_ended_its_process_is_known(tmp_path: Path) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "record", "one", interrupt)
    recorded = read(tmp_path / "record")
    assert (recorded.beginning, recorded.checks) == ("one", ())


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record(path, "one", lambda: "right")
    path.write_bytes(path.read_bytes() + b'{"check": {"name": "tw')
    assert [check.name for check in read(path).checks] == ["one"]
    record(path, "two", lambda: "right")
    assert [check.name for check in read(path).checks] == ["one", "two"]


def test_no_check_begins_after_the_end_of_its_stages_time(tmp_path: Path) -> None:
    record(tmp_path / "record", "one", crash, seconds=-1)
    (check,) = read(tmp_path / "record").checks
    assert check.verdict is Verdict.NOT_POSSIBLE


@pytest.mark.parametrize("line", [b"no JSON", b"[]", b'{"check": 3}', b"[" * 100_000])
def test_what_no_stage_writes_is_one_error(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(line + b"\n")
    with pytest.raises(CommandError):
        read(tmp_path / "record")


def test_a_note_is_read_as_every_version_writes_it(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path / "record", 0.0, time.monotonic)) as recorder:
        recorder.note("driver", "25.2")
    with (tmp_path / "record").open("a") as file:
        file.write('{"note": {"name": "CANN", "text": "8.3"}}\n')
    assert read(tmp_path / "record").notes == {"driver": "25.2", "CANN": "8.3"}
