from __future__ import annotations

import builtins
import bz2
import gzip
import json
import lzma
import math
import os
import pprint
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_npu_workbench.logs import training
from verl_npu_workbench.logs.training import (
    Assembly,
    Restart,
    StepLine,
    Steps,
    TrainingLog,
    follow,
    parse_step,
    read,
    spans,
    whole,
)

from verl_npu.errors import SourceError

from .conftest import Write, line


@pytest.mark.parametrize(
    "line",
    [
        "step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "\x1b[36m(TaskRunner pid=12)\x1b[0m step:3 - critic/score/mean:0.5 - timing_s/step:1.25\r",
        "(TaskRunner pid=12, ip=10.0.0.1) step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "Epoch 1/8:  6%|x| 1/16 [00:03<00:49,  3.30s/it]step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "(TaskRunner pid=12) step:3 - critic/score/mean:np.float64(0.5) - timing_s/step:1.25e+00",
        "step:3 - critic/score/mean:0.5 - timing_s/step:1.25\x1b[32m [repeated 2x across cluster] (see a:1)\x1b[0m",
        '{"step": 3, "data": {"critic/score/mean": 0.5, "timing_s/step": 1.25, "note": "text"}}',
    ],
)
def test_step_lines(line: str) -> None:
    found = parse_step(line)
    assert found is not None
    assert (found.step, found.metrics, found.damaged) == (3, {"critic/score/mean": 0.5, "timing_s/step": 1.25}, 0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Training Progress: 3/40",
        "step:3",
        "step:3 - ",
        "global_step:1 - a:1",
        "training/step:1 - a:1",
        "epoch 1, step: 2",
        "step:1 - this is running text",
        "{",
        '{"step": true, "data": {"a": 1}}',
        '{"step": 1, "data": {}}',
        '["step", 1]',
        '{"step": 1, "data": {"a": 1}',
        "[" * 100_000,
        '{"step": -1, "data": {"a": 1}}',
        '{"step": 1000000000000000, "data": {"a": 1}}',
    ],
)
def test_other_lines(line: str) -> None:
    assert parse_step(line) is None


def test_a_step_of_a_smoke_job_is_one() -> None:
    found = parse_step("step  12/40  reward 0.250  3.50 s\n")
    assert found is not None
    assert (found.step, found.metrics) == (12, {"critic/score/mean": 0.25, "timing_s/step": 3.5})
    assert parse_step("step  12/40  loss 1.5").metrics == {"train/loss": 1.5}  # type: ignore[union-attr]
    assert parse_step("step  12/40  no reward") is None
    assert parse_step("step  12/40  reward high") is None


def test_a_part_that_is_no_metric_is_counted() -> None:
    found = parse_step("step:1 - a/b:1 - c/d:0.5Epoch 2/8 - e")
    assert found is not None
    assert (found.metrics, found.damaged) == ({"a/b": 1.0}, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nan", math.nan),
        ("-inf", -math.inf),
        ("np.float64(nan)", math.nan),
        ("np.float32(1e-05)", 1e-05),
        ("np.int64(-3)", -3.0),
        ("True", 1.0),
        (".5", 0.5),
    ],
)
def test_numbers_that_python_and_numpy_write(text: str, value: float) -> None:
    found = parse_step(f"step:1 - a/b:{text}")
    assert found is not None
    assert found.metrics["a/b"] == pytest.approx(value, nan_ok=True)


def test_what_is_not_finite_is_null_in_the_file_loggers_lines() -> None:
    found = parse_step('{"step": 1, "data": {"a": null, "b": 1}}')
    assert found is not None
    assert math.isnan(found.metrics["a"])


def test_an_integer_that_is_too_large_for_a_float_is_infinite() -> None:
    found = parse_step(f'{{"step": 1, "data": {{"a": -{10**400}, "b": 3}}}}')
    assert found is not None
    assert found.metrics == {"a": -math.inf, "b": 3.0}


names = st.from_regex(r"[a-z_]{1,8}/[a-zA-Z0-9_:@.()/-]{0,12}[a-zA-Z_)]", fullmatch=True)
numbers = st.floats() | st.integers(-(10**20), 10**20) | st.booleans()
prefixes = st.sampled_from(
    [
        "",
        "(TaskRunner pid=123) ",
        "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m ",
        "(main_task pid=9) ",
        "2026-08-22T01:02:03Z stdout F ",
        "Training Progress:   3%|▎         | 1/30 [00:12<05:48, 12.03s/it]",
    ]
)
suffixes = st.sampled_from(["", "\r", " ", "\x1b[0m", "\x1b[32m [repeated 3x across cluster]\x1b[0m"])


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.dictionaries(names, numbers, min_size=1, max_size=8), prefixes, suffixes)
def test_no_prefix_and_no_suffix_changes_the_values(
    step: int, metrics: dict[str, float], prefix: str, suffix: str
) -> None:
    # In the format of verl's console logger.
    written = " - ".join([f"step:{step}", *(f"{name}:{pprint.pformat(value)}" for name, value in metrics.items())])
    found = parse_step(prefix + written + suffix)
    assert found is not None
    assert found.step == step
    assert found.damaged == 0
    assert found.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        assert found.metrics[name] == pytest.approx(float(value), abs=0, rel=0, nan_ok=True)


@settings(max_examples=40)
@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    parse_step(text)
    parse_step(f"step:1 - {text}")
    parse_step(json.dumps({"step": 1, "data": text}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(anything, anything)
def test_no_json_is_an_error(step: object, data: object) -> None:
    parse_step(json.dumps({"step": step, "data": data}))


def log_of(lines: Iterable[tuple[int, dict[str, float]]]) -> TrainingLog:
    assembly = Assembly()
    for step, metrics in lines:
        assembly.add(StepLine(step, metrics))
    return assembly.log("a log")


def test_steps_come_in_order_and_a_metric_has_its_own() -> None:
    log = log_of([(1, {"a": 0.1, "b": 1.0}), (2, {"a": 0.2}), (4, {"a": 0.4})])
    assert log.series("a") == {1: 0.1, 2: 0.2, 4: 0.4}
    assert log.series("b") == {1: 1.0}
    assert log.series("none") == {}
    assert (log.last, log.gaps()) == (4, [(3, 3)])
    assert log.notes() == ["the log has no line for step 3"]


def test_the_first_name_that_a_step_has_counts() -> None:
    log = log_of([(1, {"new": 1.0, "old": 9.0}), (2, {"old": 2.0})])
    assert log.series("new", "old") == {1: 1.0, 2: 2.0}


def test_a_later_run_of_a_step_wins_and_this_is_said() -> None:
    log = log_of(
        [*((step, {"a": float(step), "b": 0.0}) for step in (1, 2, 3, 4)), (2, {"a": 20.0}), (3, {"a": 30.0})]
    )
    assert log.steps == {1: {"a": 1.0, "b": 0.0}, 2: {"a": 20.0}, 3: {"a": 30.0}, 4: {"a": 4.0, "b": 0.0}}
    assert (log.last, log.restarts, log.left_over) == (3, (Restart(4, 2),), (4,))
    assert log.notes() == [
        "the log goes back from step 4 to step 2; if a step ran twice, the later run counts",
        "step 4 is from an earlier run, because no later run has reached these steps",
    ]


def test_a_run_that_caught_up_leaves_nothing_over() -> None:
    log = log_of([(1, {"a": 1.0}), (2, {"a": 2.0}), (1, {"a": 1.5}), (2, {"a": 2.5}), (3, {"a": 3.5})])
    assert (log.restarts, log.left_over, log.last) == ((Restart(2, 1),), (), 3)


def test_a_restart_at_the_very_step_is_one() -> None:
    log = log_of([(1, {"a": 1.0}), (1, {"a": 2.0})])
    assert (log.restarts, log.steps[1]) == ((Restart(1, 1),), {"a": 2.0})


def test_training_and_validation_of_a_step_are_one_step() -> None:
    log = log_of([(0, {"val/loss": 9.0}), (1, {"train/loss": 0.5}), (1, {"val/loss": 0.7}), (2, {"train/loss": 0.4})])
    assert log.steps[1] == {"train/loss": 0.5, "val/loss": 0.7}
    assert log.restarts == ()


def test_a_validation_that_comes_late_is_no_restart() -> None:
    log = log_of([(10, {"a": 1.0}), (11, {"a": 2.0}), (12, {"a": 3.0}), (10, {"val": 0.5}), (13, {"a": 4.0})])
    assert (log.restarts, log.last, log.steps[10]) == ((), 13, {"a": 1.0, "val": 0.5})


def test_the_same_lines_again_are_no_news() -> None:
    lines = [(step, {"a": float(step), "b": math.nan}) for step in (1, 2, 3)]
    assert log_of([*lines, *lines]).restarts == ()


def test_spans_join_consecutive_steps() -> None:
    assert spans([]) == ""
    assert spans([7, 1, 2, 4, 3]) == "1 to 4, 7"


@settings(max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.randoms())
def test_what_counts_is_always_what_was_written_last(starts: list[int], random) -> None:  # type: ignore[no-untyped-def]
    """Runs that each begin at some step and end at a later one, compared with a plain dictionary."""
    lines, expected = [], {}
    for run, start in enumerate(starts):
        for step in range(start, start + random.randint(1, 8)):
            value = float(f"{step}.{run + 1}")
            lines.append((step, {"a": value}))
            expected[step] = value
    log = log_of(lines)
    assert log.series("a") == expected
    assert log.last == lines[-1][0]


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
    assert log.notes() == ["the last line of the log is cut off, and its incomplete value was ignored"]


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


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("w") as stream:
        stream.write("step:1 - critic/rewards/mean:0.5\n")
        for _ in range(64):
            stream.write("step:7 - " + "1" * (1 << 20))
        stream.write("\nstep:2 - critic/rewards/mean:0.25\n")
    tracemalloc.start()
    try:
        found = read(log)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found.steps) == [1, 2]
    assert most < 16 << 20


def test_new_metrics_in_each_line_do_not_take_longer_and_longer() -> None:
    def seconds(lines: int) -> float:
        assembly, start = Assembly(), time.thread_time()
        for number in range(lines):
            assembly.add(StepLine(number, {f"metric {number}": 1.0}))
        return time.thread_time() - start

    assert min(seconds(16000) for _ in range(3)) < 12 * min(seconds(4000) for _ in range(3))


def test_what_is_repeated_in_a_log_is_told_a_few_times() -> None:
    assembly = Assembly()
    for run in range(1000):
        for step in (1, 5):
            assembly.add(StepLine(step, {"reward": float(run)}))
    notes = assembly.log("train.log").notes()
    assert len(notes) < 20
    assert "the log goes back 991 more times" in notes


NO_LOGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "no such file"),
    "an empty file": (lambda path: path.touch(), "a file without a step"),
    "a text": (lambda path: path.write_text("Training Progress: 1/3\n"), "a file without a step"),
    "a binary": (lambda path: path.write_bytes(b"\x7fELF\0\1\2" * 99), "a binary file"),
    "an empty folder": (lambda path: path.mkdir(), "found no TensorBoard files"),
}


@pytest.mark.parametrize(("make", "said"), NO_LOGS.values(), ids=NO_LOGS.keys())
def test_what_is_no_log_is_refused(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "log"
    make(path)
    with pytest.raises(SourceError, match=said):
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
    """Return a folder as torch's SummaryWriter makes it, which is verl's TensorBoard logger."""
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
    with pytest.raises(SourceError, match="the files of 2 trainings"):
        read(events)


def test_a_folder_that_vanishes_while_its_files_are_looked_for_is_passed_over(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (events / "gone").mkdir()
    scandir = os.scandir

    def vanishing(path: object = ".") -> object:
        if Path(str(path)).name == "gone":
            raise FileNotFoundError(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert read(events).steps


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
    with pytest.raises(SourceError, match="pip install tensorboard"):
        read(events)


def test_growing_files_give_each_step_once(tmp_path: Path) -> None:
    driver, worker = tmp_path / "train.log", tmp_path / "worker.out"
    steps = Steps(lambda: [path for path in (driver, worker) if path.exists()])
    assert steps.poll() == []
    driver.write_text("step:1 - score:0.1\nstep:2 - sco")
    assert steps.poll() == [1]
    worker.write_text("step:1 - score:0.1\nstep:2 - score:0.2\nstep:4 - score:0.4\n")
    with driver.open("a") as file:
        file.write("re:0.2\n")
    assert steps.poll() == [2, 4]
    assert steps.series("score") == [0.1, 0.2]
    assert steps.series("other") == []


def test_two_lines_of_one_step_are_one_step(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step:1 - train/loss:0.5\nstep:1 - val/loss:0.7\n")
    steps = Steps(lambda: [log])
    assert steps.poll() == [1]
    assert steps.by_step == {1: {"train/loss": 0.5, "val/loss": 0.7}}


# Very many steps.


def test_of_very_many_steps_few_are_kept_and_this_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_MOST_STEPS", 4000)
    metrics = ((step, {"a": math.nan if step == 7777 else float(step)}) for step in range(1, 20_001))
    log = log_of(metrics)
    assert len(log.steps) <= 4000
    assert log.count == 20_000
    assert {1, 2, 3, 99, 7777, 19_999, 20_000} <= log.steps.keys()
    assert log.gaps() == []
    assert log.notes() == [
        f"the log has 20000 steps, which are too many; the first 100 steps, the last 1000, and one in every "
        f"{log.stride} steps between them are used"
    ]


def test_two_logs_of_which_few_steps_are_kept_have_the_same_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_MOST_STEPS", 4000)
    short, long = (log_of((10 * step, {"a": 1.0}) for step in range(1, last)) for last in (6_000, 30_000))
    kept = [step for step in long.steps if step < 45_000]
    assert len(kept) > 150
    assert short.steps.keys() >= set(kept)


def test_most_lines_of_a_very_long_log_are_not_parsed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_MOST_STEPS", 4000)
    parsed = []
    parse = training.parse_step
    monkeypatch.setattr(training, "parse_step", lambda text: (parsed.append(text), parse(text))[1])
    values = {step: {"a": math.nan if step == 70_001 else float(step), "pad": 1e300} for step in range(1, 100_001)}
    path = write("".join(line(step, each).partition("\x1b[0m ")[2] for step, each in values.items()))
    log = read(path)
    assert len(parsed) < 30_000
    assert (log.count, log.last, log.restarts) == (100_000, 100_000, ())
    assert {1, 100, 70_001, 99_001, 100_000} <= log.steps.keys()
    assert all(log.steps[step]["a"] == step for step in log.steps if step != 70_001)


def test_each_line_is_parsed_once_and_few_steps_are_gone_through_again(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_MOST_STEPS", 2500)
    looked_at = []
    finite = math.isfinite
    monkeypatch.setattr(math, "isfinite", lambda value: (looked_at.append(value), finite(value))[1])
    counts = []
    for steps in (10_000, 40_000):
        looked_at.clear()
        read(write({step: {"a": 1.0} for step in range(1, steps + 1)}))
        counts.append(len(looked_at))
    assert counts[1] < 6 * counts[0]


# Logs that somebody has printed.

BROKEN = """step:1 - actor/grad_norm:0.04106094129383564 - \x20
……
critic/rewards/mean:-0.4141845703125 -
response_length/mean:7385.140625 -\x20
……
timing_s/gen:1315.2451746799998 -\x20

timing_s/step:1738.0274970199998
timing_s/not_of_it:3.0
step:2 - actor/grad_norm:0.05
"""
"""The console's lines as the document on Ascend's image prints them."""


def test_a_line_that_is_printed_over_several_is_one_step(write: Write) -> None:
    log = read(write(BROKEN))
    assert log.steps[1] == {
        "actor/grad_norm": 0.04106094129383564,
        "critic/rewards/mean": -0.4141845703125,
        "response_length/mean": 7385.140625,
        "timing_s/gen": 1315.2451746799998,
        "timing_s/step": 1738.0274970199998,
    }
    assert (list(log.steps), log.damaged) == ([1, 2], 0)


# Files that are not ordinary.


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(pack("".join(line(step, GOOD[step]) for step in GOOD).encode()))
    assert read(path).steps == GOOD


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_that_is_damaged_is_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "train.log"
    packed = bytearray(pack("".join(line(step, {"a": step / 7}) for step in range(2000)).encode()))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed[: len(packed) * 3 // 4])
    with pytest.raises(SourceError, match="found "):
        read(path)


def test_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.log", line(1, {"a": 1.0}))
    with pytest.raises(SourceError, match=r"an archive \(zip\): unpack it first"):
        read(path)


def test_a_device_is_refused() -> None:
    with pytest.raises(SourceError, match="a device"):
        read(Path("/dev/zero"))


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "".join(line(step, GOOD[step]) for step in GOOD)
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    follower = follow(path)
    log = whole(follower)
    writer.join()
    assert (log.steps, follower.ended) == (GOOD, True)
    assert "".join(follower.end()) == text


def test_only_the_end_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(line(step, {"a": 1.0, "pad": 1e300}) for step in range(1, 60_000)) + "the last line\n")
    follower = follow(path)
    whole(follower)
    lines = list(follower.end())
    assert lines[-1] == "the last line"
    assert 3 < len(lines) < 30_000
