"""The line that tells a user that a variable has no effect."""

from __future__ import annotations

import pytest
from testing.interpreter import Interpreter

from verl_npu import reporting
from verl_npu.features.micro_batches import warn_if_none
from verl_npu.registry.state import State


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(reporting, "warn", said.append)
    monkeypatch.setenv("VERL_NPU_TOKEN_BUDGET", "1")
    return said


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.ABSENT, "is absent; this verl version does not split batches with the functions"),
        (State.NATIVE, "is native; this verl version limits its micro-batches itself"),
        (State.DRIFTED, "is drifted; its micro-batches may exceed their token budget"),
    ],
)
def test_a_feature_that_is_not_in_force_is_said(lines: list[str], state: State, words: str) -> None:
    warn_if_none(state)
    (line,) = lines
    assert line.startswith("VERL_NPU_TOKEN_BUDGET=1 has no effect: ")
    assert words in line


@pytest.mark.parametrize("state", [State.PENDING, State.APPLIED, None])
def test_a_feature_in_force_is_not(lines: list[str], state: State | None) -> None:
    warn_if_none(state)
    assert lines == []


def test_without_the_users_variable_nothing_is_printed(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_NPU_TOKEN_BUDGET")
    warn_if_none(State.ABSENT)
    assert lines == []


def test_the_process_that_imports_verl_says_it(interpreter: Interpreter) -> None:
    interpreter.package("verl")  # without a module that splits batches
    result = interpreter.run("import verl_npu, verl", VERL_NPU="on", VERL_NPU_TOKEN_BUDGET="1")
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "VERL_NPU_TOKEN_BUDGET=1 has no effect" in line]
