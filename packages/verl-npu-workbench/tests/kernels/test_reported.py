"""Reported faults of kernels on NPUs are found in kernels of our own with the same fault, without an NPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import judging, targets, toolchain
from verl_npu_workbench.kernels.toolchain import PAIRS, Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Outcome, Stage, Verdict

from .conftest import Judge
from .reported import (
    CHOSEN_KEYS,
    COPIED_CUBES,
    COPIED_ROWS,
    DIVIDED,
    GATED_ROWS,
    HEAD,
    LOGARITHMS,
    ONE_DIVIDED,
    RESHAPED,
    ROW_LOSSES,
    SQUARES,
)

pytestmark = pytest.mark.nightly
CANN_8_5 = next(pair for pair in PAIRS if (pair.front, pair.back) == ("3.2.0", "1.1.0"))


@pytest.fixture
def older() -> Toolchain:
    """Return the back end with CANN 8.5's figures."""
    return toolchain.prepare(CANN_8_5)


def outcome(chain: Toolchain, source: str, folder: Path) -> Outcome:
    file = folder / "reported_kernel.py"
    file.write_text(HEAD + source)
    asked = judging.Request(toolchain=chain, soc=Soc.A2, unconfined=bool(os.environ.get("CI")), fresh=True)
    target = targets.find(str(file), folder)
    (found,) = judging.judge(target, judging.read(target, asked).kernels, asked)
    return found.best


@pytest.mark.parametrize(("source", "needed"), [(COPIED_ROWS, 3072000), (COPIED_CUBES, 2097152)])
def test_the_figure_is_the_report_s_with_the_compiler_of_its_time(
    older: Toolchain, tmp_path: Path, source: str, needed: int
) -> None:
    found = outcome(older, source, tmp_path)
    # The pointers are guessed to be of float32, and with bfloat16 the rows fit.
    assert (found.verdict, found.buffer, found.needed, found.there) == (Verdict.MAY_OVERFLOW, "ub", needed, 1572864)
    assert found.why == "x_ptr=*fp32, out_ptr=*fp32"


def test_rows_that_torch_makes_a_kernel_of_overflow_by_about_the_report_s_figure(
    older: Toolchain, tmp_path: Path
) -> None:
    found = outcome(older, GATED_ROWS, tmp_path)
    assert (found.verdict, found.buffer) == (Verdict.OVERFLOWS, "ub")
    assert 1966848 <= found.needed <= 1.1 * 1966848


def test_a_division_of_one_element_ends_the_adapter_and_one_of_a_block_does_not(judge: Judge) -> None:
    (one,), (block,) = judge(HEAD + ONE_DIVIDED), judge(HEAD + DIVIDED)
    assert (one.best.verdict, one.best.stage) == (Verdict.CRASHED, Stage.ADAPTER)
    assert block.best.verdict is Verdict.COMPILES


@pytest.mark.parametrize("source", [COPIED_ROWS, COPIED_CUBES])
def test_a_later_compiler_goes_on_without_a_second_buffer(judge: Judge, source: str) -> None:
    (found,) = judge(HEAD + source)
    assert found.best.verdict is Verdict.COMPILES
    assert "enable-auto-multi-buffer to false" in found.best.notes[-1]


@pytest.mark.parametrize(
    ("source", "large", "small"),
    [
        (RESHAPED, "SIDE=64", "SIDE=32"),
        (ROW_LOSSES, "WIDTH=32768", "WIDTH=4096"),
        (CHOSEN_KEYS, "QUERIES=64", "QUERIES=32"),
    ],
)
def test_what_the_report_says_to_fit_does(judge: Judge, source: str, large: str, small: str) -> None:
    (refused,) = judge(HEAD + source)
    (taken,) = judge(HEAD + source.replace(large, small))
    assert (refused.best.verdict, taken.best.verdict) == (Verdict.OVERFLOWS, Verdict.COMPILES)


def test_a_function_that_the_back_end_lacks_is_refused_and_its_equal_is_not(judge: Judge) -> None:
    (lacking,) = judge(HEAD + LOGARITHMS)
    (equal,) = judge(HEAD + LOGARITHMS.replace("libdevice.log1p(", "tl.log(1.0 + "))
    assert (lacking.best.verdict, lacking.best.stage) == (Verdict.REFUSED, Stage.FRONT_END)
    assert "cannot convert None" in lacking.best.why
    assert equal.best.verdict is Verdict.COMPILES


def test_a_float_that_is_wider_than_the_npu_s_ends_the_compiler_with_the_report_s_words(judge: Judge) -> None:
    (wide,) = judge(HEAD + SQUARES)
    (narrow,) = judge(HEAD + SQUARES.replace("float64", "float32"))
    assert (wide.best.verdict, wide.best.stage) == (Verdict.CRASHED, Stage.COMPILER)
    assert "unsupported datatype for arith::ExtFOp to hfusion" in wide.best.why
    assert narrow.best.verdict is Verdict.COMPILES
