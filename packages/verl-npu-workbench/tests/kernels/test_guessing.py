"""Guesses about a kernel's parameters from its source."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import cast

import pytest
from verl_npu_workbench.kernels.inside import guessing
from verl_npu_workbench.kernels.inside.strangers import Stranger, strangers_in

SOURCE = """
def inner(base, rows, WIDTH):
    return tl.load(base + rows * WIDTH)

def kernel(x, y, index, table, scale, n, out, WIDTH):
    rows = tl.load(index + tl.arange(0, WIDTH))
    moved = x + rows * n
    value = tl.load(moved).to(tl.float32) * scale
    last = tl.load(table).to(tl.int64)
    value += inner(y, rows, WIDTH)
    tl.store(out + last, value)

"""
TREE = ast.parse(SOURCE)
FUNCTIONS = {each.name: each for each in TREE.body if isinstance(each, ast.FunctionDef)}


@pytest.fixture
def use() -> guessing.Use:
    return guessing.use_of(FUNCTIONS["kernel"], FUNCTIONS)


def test_a_pointer_is_what_is_loaded_from_here_or_in_a_function_that_is_called(use: guessing.Use) -> None:
    assert use.pointers == {"x", "y", "index", "table", "out"}


def test_what_is_added_to_a_pointer_or_made_an_integer_leads_to_integers(use: guessing.Use) -> None:
    assert {"index", "table"} <= use.integers
    assert not use.integers & {"x", "y", "out"}


def test_what_is_made_a_float_when_it_is_loaded_is_floating_data(use: guessing.Use) -> None:
    assert use.real == {"x"}


def test_the_innermost_stride_of_a_tensor_is_1() -> None:
    assert guessing._ones(["stride_am", "stride_ak", "stride_b_n", "stride_b_k", "stride_x"]) == {
        "stride_ak",
        "stride_b_k",
    }
    assert guessing._ones(["x_batch_stride", "x_row_stride", "y_stride", "stride"]) == {"x_row_stride"}


def test_a_parameter_that_is_compared_with_texts_is_the_first_of_them() -> None:
    tree = ast.parse("def kernel(KIND, n):\n    if KIND == 'grpo' or KIND == 'dapo':\n        n += 1")
    (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef))
    assert guessing.use_of(function, {}).choices == {"KIND": "grpo"}


def test_a_parameter_that_is_compared_with_several_integers_is_the_last_of_them() -> None:
    tree = ast.parse(
        "def kernel(WIDTH, ONE):\n    if WIDTH == 2:\n        n = 1\n    elif WIDTH == 4 and ONE == 1:\n        n = 2"
    )
    (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef))
    assert guessing.use_of(function, {}).choices == {"WIDTH": 4}


def overflow_of(**sides: int | str) -> Callable[[guessing.Guess], bool]:
    """Return a stand-in for the compiler: a kernel with all of these types and values overflows."""
    return lambda made: all({**made.signature, **made.constants}.get(name) == side for name, side in sides.items())


@pytest.mark.parametrize(
    ("guessed", "overflows", "rests"),
    [
        ({"x"}, overflow_of(BLOCK=64), {}),
        ({"x"}, overflow_of(x="*bf16"), {"x": "*bf16"}),
        ({"BLOCK"}, overflow_of(), {"BLOCK": 64}),
        ({"x_stride"}, overflow_of(x_stride="i32"), {"x_stride": "i32"}),
    ],
)
def test_an_overflow_rests_on_a_guess_unless_it_is_there_without_it(
    guessed: set[str], overflows: Callable[[guessing.Guess], bool], rests: dict[str, object]
) -> None:
    made = guessing.Guess({"x": "*bf16", "x_stride": "i32"}, {"BLOCK": 64}, guessed=guessed)
    assert overflows(made)
    assert guessing.rests_on(made, overflows) == rests


def test_variants_change_only_what_was_guessed(use: guessing.Use) -> None:
    made = guessing.Guess(
        {"x": "*fp32", "y": "*i8"}, {"y": None, "FLAG": False, "SET": False}, ["x"], guessed={"FLAG"}
    )
    found = list(guessing.variants(made, use))
    assert found[0] is made
    assert {each.constants["SET"] for each in found} == {False}
    assert {each.constants["FLAG"] for each in found} == {False, True}
    assert any("y" not in each.constants and each.signature["y"].startswith("*") for each in found)


def test_a_stranger_lets_all_be_done_with_it_and_is_found_in_what_holds_it() -> None:
    strange = Stranger("torch")
    assert repr(strange.float32) == "torch.float32"
    assert not strange
    assert not strange > 3
    assert strangers_in([1, (strange.inf,)]) == ["torch.inf"]

    def plain() -> int:
        return 1

    assert cast("object", strange.compile(plain)) is plain
