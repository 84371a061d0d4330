"""What one line of a log says of a step, whoever stands before and after it."""

from __future__ import annotations

import json
import math
import pprint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_npu.training_log.line import parse


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
    found = parse(line)
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
    assert parse(line) is None


def test_a_part_that_is_no_metric_is_counted() -> None:
    found = parse("step:1 - a/b:1 - c/d:0.5Epoch 2/8 - e")
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
    found = parse(f"step:1 - a/b:{text}")
    assert found is not None
    assert found.metrics["a/b"] == pytest.approx(value, nan_ok=True)


def test_what_is_not_finite_is_null_in_the_file_loggers_lines() -> None:
    found = parse('{"step": 1, "data": {"a": null, "b": 1}}')
    assert found is not None
    assert math.isnan(found.metrics["a"])


def test_an_integer_that_is_too_large_for_a_float_is_infinite() -> None:
    found = parse(f'{{"step": 1, "data": {{"a": -{10**400}, "b": 3}}}}')
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


@settings(deadline=None)
@given(st.integers(0, 10**9), st.dictionaries(names, numbers, min_size=1, max_size=8), prefixes, suffixes)
def test_no_prefix_and_no_suffix_changes_the_values(
    step: int, metrics: dict[str, float], prefix: str, suffix: str
) -> None:
    # As verl's console logger writes it.
    written = " - ".join([f"step:{step}", *(f"{name}:{pprint.pformat(value)}" for name, value in metrics.items())])
    found = parse(prefix + written + suffix)
    assert found is not None
    assert found.step == step
    assert found.damaged == 0
    assert found.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        assert found.metrics[name] == pytest.approx(float(value), abs=0, rel=0, nan_ok=True)


@settings(deadline=None)
@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    parse(text)
    parse(f"step:1 - {text}")
    parse(json.dumps({"step": 1, "data": text}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(anything, anything)
def test_no_json_is_an_error(step: object, data: object) -> None:
    parse(json.dumps({"step": step, "data": data}))
