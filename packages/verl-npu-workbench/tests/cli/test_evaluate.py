"""`verl-npu evaluate`: what it prints, what it refuses, and that a kill costs no answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evaluation.conftest import data, endpoint, function, write
from tests.evaluation.endpoint import Served

from .conftest import Run

__all__ = ["data", "endpoint", "function", "write"]  # fixtures

Evaluate = Callable[..., tuple[int, str]]


@pytest.fixture
def words(endpoint: Served, data: Path, function: Path, tmp_path: Path) -> list[str]:
    """The call, without the command's name."""
    return [str(data), "--url", endpoint.url, "--reward", str(function), "--output", str(tmp_path / "out")]


@pytest.fixture
def evaluate(run: Run, words: list[str]) -> Evaluate:
    """Evaluate the sums."""
    return lambda *more: run("evaluate", *words, *more)


def test_it_prints_the_figures_and_where_the_answers_are(evaluate: Evaluate, tmp_path: Path) -> None:
    status, output = evaluate("--rounds", "4")
    assert status == 0
    lines = {line.split()[0]: line.split()[1] for line in output.splitlines() if len(line.split()) > 1}
    assert (lines["mean"], lines["pass@1"], lines["pass@4"], lines["cut"]) == ("1.0000", "100.00", "100.00", "0.00")
    assert "4 prompts, 16 answers" in output
    assert output.splitlines()[-1] == f"answers: {tmp_path / 'out' / 'answers.jsonl'}"


def test_two_are_shown_side_by_side(evaluate: Evaluate, endpoint: Served, tmp_path: Path) -> None:
    adds, endpoint.answer = endpoint.answer, lambda request: "none"
    assert evaluate()[0] == 0
    endpoint.answer, endpoint.root = adds, "models/after"
    status, output = evaluate("--output", str(tmp_path / "after"), "--against", str(tmp_path / "out"))
    assert status == 0
    assert "before: small (models/small), 4 prompts, 4 answers" in output
    assert "after: small (models/after), 4 prompts, 4 answers" in output
    assert "mean    0.0000" in output
    assert "higher: the mean differs by +1.0000" in output


def test_as_json_it_is_one_object(evaluate: Evaluate) -> None:
    status, output = evaluate("--json")
    assert status == 0
    found = json.loads(output)["evaluation"]
    assert (found["complete"], found["total"]["mean"], found["settings"]["rounds"]) == (True, 1.0, 1)


def test_other_settings_are_refused_with_the_folder(evaluate: Evaluate) -> None:
    assert evaluate()[0] == 0
    status, output = evaluate("--temperature", "0")
    assert status == 2
    assert "expected an evaluation with sampling" in output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--chat-template", "no"), "--chat-template: expected an object in JSON, found no"),
        (("--reward-arguments", "[]"), "--reward-arguments: expected an object in JSON, found []"),
        (("again.parquet",), "expected one DATA, a parquet file, found"),
        (("--against", "nowhere"), "nowhere/settings.json: expected the settings of an evaluation"),
    ],
)
def test_a_wrong_call_is_one_line(evaluate: Evaluate, endpoint: Served, more: tuple[str, ...], said: str) -> None:
    status, output = evaluate(*more)
    assert status == 2
    assert said in output
    assert endpoint.requests == []


@pytest.mark.parametrize("package", ["openai", "pyarrow"])
def test_a_missing_package_is_one_line_with_the_extra(
    evaluate: Evaluate, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else object())
    status, output = evaluate()
    assert status == 2
    assert f"expected the package {package}, found none; pip install 'verl-npu-workbench[evaluate]'" in output


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.nightly("verl_npu_workbench/evaluation/")),
        signal.SIGINT,
    ],
)
def test_a_kill_half_way_costs_no_answer(
    words: list[str], endpoint: Served, run: Run, tmp_path: Path, number: signal.Signals
) -> None:
    adds = endpoint.answer
    answers = tmp_path / "out" / "answers.jsonl"

    def slowly(request: dict[str, object]) -> str:
        time.sleep(0.05)
        return adds(request)

    endpoint.answer = slowly
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from verl_npu.cli import main; main(prog_name='verl-npu')"
    )
    command = [sys.executable, "-c", program, "evaluate", *words, "--rounds", "50", "--concurrency", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not answers.is_file() or len(answers.read_text().splitlines()) < 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    kept = len([line for line in answers.read_text().splitlines(keepends=True) if line.endswith("\n")])
    assert 20 <= kept < 200
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "ended by Ctrl-C" in said
    endpoint.answer, endpoint.requests = adds, []
    status, output = run("evaluate", *words, "--rounds", "50")
    assert (status, len(endpoint.requests)) == (0, 200 - kept)
    assert "4 prompts, 200 answers" in output
