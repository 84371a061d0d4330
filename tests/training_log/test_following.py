"""Logs on disk: whole, broken, growing, and what is none."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.errors import TrainingLogError
from verl_npu.training_log.following import follow, read

from .conftest import Write, line

GOOD = {step: {"critic/rewards/mean": step / 10, "timing_s/step": 2.0} for step in (1, 2, 3)}


def test_a_console_log(write: Write) -> None:
    log = read(write(GOOD))
    assert log.steps == GOOD
    assert log.notes() == []
    assert not log.simulated


def test_a_file_loggers_log(write: Write) -> None:
    log = read(write('{"step":1,"data":{"a/b":0.5}}\n{"step":2,"data":{"a/b":null}}\n', "run.jsonl"))
    assert log.steps[1] == {"a/b": 0.5}
    assert log.steps[2]["a/b"] != log.steps[2]["a/b"]


def test_a_log_of_virtual_npus_says_so(write: Write) -> None:
    text = "verl-npu: 0.1.0: SIMULATED: virtual NPUs; verl v0.6.1\n" + line(1, {"a/b": 1.0})
    assert read(write(text)).simulated


def test_of_a_line_that_is_cut_off_the_last_value_does_not_count(write: Write) -> None:
    whole = line(4, {"a/b": 1.0, "c/d": 12.5}).rstrip("\n")
    log = read(write(line(3, {"a/b": 3.0}) + whole[:-1]))
    assert log.steps == {3: {"a/b": 3.0}, 4: {"a/b": 1.0}}
    assert log.cut
    assert log.notes() == ["its last line is cut off, and the value there was left out"]


@pytest.mark.parametrize("kept", range(1, 60))
def test_a_cut_anywhere_gives_no_value_that_was_not_written(write: Write, kept: int) -> None:
    last = {"a/b": 1.0, "c/d": 12.5, "e/f": 1e-05}
    text = line(1, {"a/b": 3.0})
    log = read(write(text + line(2, last)[:kept]))
    assert log.steps.get(2, {}).items() <= last.items()


def test_a_cut_line_of_the_file_logger_does_not_count(write: Write) -> None:
    log = read(write('{"step":1,"data":{"a/b":0.5}}\n{"step":2,"data":{"a/b":0.', "run.jsonl"))
    assert (list(log.steps), log.cut) == ([1], True)


def test_a_last_line_of_the_file_logger_needs_no_line_end(write: Write) -> None:
    log = read(write('{"step":1,"data":{"a/b":0.5}}', "run.jsonl"))
    assert (log.steps, log.cut) == ({1: {"a/b": 0.5}}, False)


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe garbage \x9b\n" + line(1, {"a/b": 1.0}).encode() + b"\xc3(\n")
    assert read(path).steps == {1: {"a/b": 1.0}}


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_npu.training_log.following._LONGEST_LINE", 1000)
    path = tmp_path / "train.log"
    path.write_text("step:1 - a/b:1.0 " + "x" * (3 << 20) + "\n" + line(2, {"a/b": 2.0}))
    follower = follow(path)
    follower.poll()
    # What stood at the beginning of the long line was not kept.
    assert follower.log().steps == {2: {"a/b": 2.0}}


NO_LOGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "no such file"),
    "an empty file": (lambda path: path.touch(), "no step in it"),
    "a text": (lambda path: path.write_text("Training Progress: 1/3\n"), "no step in it"),
    "a binary": (lambda path: path.write_bytes(b"\x7fELF\0\1\2" * 99), "a binary file"),
    "an empty folder": (lambda path: path.mkdir(), "found none"),
}


@pytest.mark.parametrize(("make", "said"), NO_LOGS.values(), ids=NO_LOGS.keys())
def test_what_is_no_log_is_refused(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "log"
    make(path)
    with pytest.raises(TrainingLogError, match=said):
        read(path)


# Growing.


def test_a_growing_log_gives_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(line(1, {"a/b": 1.0}) + "step:2 - a/b:2.")
    follower = follow(path)
    assert follower.poll()
    assert follower.log().steps == {1: {"a/b": 1.0}}
    assert not follower.poll()
    with path.open("a") as file:
        file.write("25\n")
    assert follower.poll()
    assert follower.log().steps == {1: {"a/b": 1.0}, 2: {"a/b": 2.25}}


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(line(1, {"a/b": 1.0}) + line(2, {"a/b": 2.0}))
    follower = follow(path)
    follower.poll()
    path.write_text(line(1, {"a/b": 9.0}))
    assert follower.poll()
    assert follower.log().steps == {1: {"a/b": 9.0}}


# TensorBoard.


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A folder as torch's SummaryWriter makes it: what verl's TensorBoard logger is."""
    pytest.importorskip("tensorboard")
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "run" / "one"))
    for step in (1, 2, 3):
        writer.add_scalar("critic/rewards/mean", step / 8, step)
        writer.add_scalar("timing_s/step", 2.0, step)
    writer.add_scalar("critic/rewards/mean", 0.75, 2)
    writer.close()
    return tmp_path / "run"


def test_tensorboards_files(events: Path) -> None:
    for path in (events, events / "one", next((events / "one").iterdir())):
        log = read(path)
        assert log.series("critic/rewards/mean") == {1: 0.125, 2: 0.75, 3: 0.375}
        assert (len(log.restarts), log.left_over) == (1, (3,))


def test_tensorboards_files_of_two_trainings_are_refused(events: Path) -> None:
    (events / "two").mkdir()
    (events / "two" / "events.out.tfevents.1.host.2.3").touch()
    with pytest.raises(TrainingLogError, match="those of 2"):
        read(events)


def test_tensorboards_files_are_followed(events: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    follower = follow(events)
    assert follower.poll()
    assert not follower.poll()
    writer = SummaryWriter(str(events / "one"))
    writer.add_scalar("critic/rewards/mean", 0.5, 4)
    writer.close()
    assert follower.poll()
    assert follower.log().last == 4


def test_without_tensorboard_it_is_said_what_to_install(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(TrainingLogError, match="pip install tensorboard"):
        read(events)
