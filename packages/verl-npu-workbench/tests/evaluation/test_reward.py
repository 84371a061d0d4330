"""The reward function is called as verl calls it, and what it returns becomes a grade."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from verl_npu_workbench.evaluation.dataset import Prompt
from verl_npu_workbench.evaluation.reward import Grade, load

from verl_npu.errors import EvaluationError

PROMPT = Prompt(7, [], "sums", "4", {"index": 7})


def grade(path: Path | None, name: str, answer: str = "4", prompt: Prompt = PROMPT, **arguments: object) -> Grade:
    return asyncio.run(load(path, name, arguments).grade(prompt, answer))


def test_a_dict_gives_a_score_and_what_else_it_has(function: Path) -> None:
    assert grade(function, "compute_score") == Grade(1.0, {"acc": True, "said": "4"})


def test_a_number_is_a_score_and_arguments_are_passed_on(function: Path) -> None:
    assert grade(function, "scaled", by=3) == Grade(3.0)


def test_a_function_that_is_awaited_is_awaited(function: Path) -> None:
    assert grade(function, "later") == Grade(0.5)


def test_numpys_values_become_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "r.py"
    path.write_text(
        "import numpy\ndef f(**given): return {'score': numpy.float32(0.5), 'acc': numpy.bool_(True), 'odd': {1, }}"
    )
    assert grade(path, "f") == Grade(0.5, {"acc": True, "odd": "{1}"})


@pytest.mark.parametrize(
    ("name", "said"),
    [("broken", r"found \{'acc': 1\}"), ("raises", "found KeyError: 'no such key'")],
)
def test_a_function_that_fails_is_one_error_that_names_the_row(function: Path, name: str, said: str) -> None:
    with pytest.raises(EvaluationError, match=rf"{name} at row 7 \(sums\): .*{said}"):
        grade(function, name)


def test_a_function_that_is_not_there_is_one_error(function: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"expected a function other in it, found none"):
        load(function, "other", {})
    with pytest.raises(EvaluationError, match=r"expected a Python file"):
        load(tmp_path / "none.py", "f", {})


def test_a_file_that_cannot_be_imported_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "r.py"
    path.write_text("import no_such_module_at_all")
    with pytest.raises(EvaluationError, match=r"can be imported, found ModuleNotFoundError"):
        load(path, "f", {})


def test_two_functions_have_two_identities(function: Path) -> None:
    first, again = load(function, "scaled", {}).identity, load(function, "scaled", {}).identity
    assert first == again != load(function, "scaled", {"by": 2}).identity
    function.write_text(function.read_text() + "\n")
    assert load(function, "scaled", {}).identity != first


@pytest.mark.upstream
def test_without_a_file_it_is_verls_own_which_knows_gsm8k() -> None:
    pytest.importorskip("verl")
    prompt = Prompt(0, [], "openai/gsm8k", "72", {})
    assert grade(None, "", "so it is\n#### 72", prompt).score == 1
    assert grade(None, "", "so it is\n#### 71", prompt).score == 0
