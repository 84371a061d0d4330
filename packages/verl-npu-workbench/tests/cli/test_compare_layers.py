"""`verl-npu compare --layers` on a launch script, and what it prints of a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run

OPERATOR = {
    "operator": "layers.0.self_attn.rotary",
    "kind": "rotary embedding",
    "verdict": "different",
    "error": 0.55,
    "rounding": 0.0032,
    "ratio": 227.0,
    "tokens": 0.98,
    "flips": None,
}
STREAMS = [{"name": "norm", "error": 0.004, "rounding": 0.005}]
RESULT: dict[str, Any] = {
    "engine": "vllm-ascend 0.23.0",
    "trainer": "transformers on npu",
    "model": "models/qwen3",
    "simulated": True,
    "first": {"side": "engine", **OPERATOR},
    "cause": {"reason": "rotary base", "said": "500000 instead of 10000"},
    "numbers": None,
    "remaining": None,
    "sides": {
        "trainer": {"dtype": "bfloat16", "operators": [], "streams": STREAMS},
        "engine": {"dtype": "bfloat16", "operators": [OPERATOR], "streams": STREAMS},
        "engine with graphs": {"dtype": "bfloat16", "operators": [], "streams": []},
    },
    "margin": 4.0,
    "not_shown": ["captured graphs"],
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script whose job is not composed, and whose result is RESULT."""
    module = "verl_npu_workbench.cli.compare"
    path = tmp_path / "run.sh"
    path.write_text("")
    monkeypatch.setattr(f"{module}.asked_trainer", lambda *given: (None, tmp_path, "run"))
    monkeypatch.setattr(f"{module}.compose", lambda *given: type("Job", (), {"settings": None}))
    monkeypatch.setattr(f"{module}.compare_layers", lambda *given: RESULT)
    return path


def test_the_first_lines_name_the_operator_and_its_cause(run: Run, script: Path) -> None:
    status, output = run("compare", "--layers", str(script))
    assert status == 1
    lines = output.splitlines()
    assert lines[0].startswith("SIMULATED")
    assert lines[1] == "different"
    assert "engine, layers.0.self_attn.rotary: different. Its error is 5.5e-01" in lines[2]
    assert "Cause: rotary base: 500000 instead of 10000." in output
    assert "Operators compared: trainer: 0, engine: 1, engine with graphs: 0." in output
    assert "not shown: captured graphs" in output


def test_its_json_has_all_operators(run: Run, script: Path) -> None:
    _status, output = run("compare", "--json", "--layers", str(script))
    assert json.loads(output)["sides"]["engine"]["operators"] == [OPERATOR]


def test_its_picture_shows_the_error_by_layer(run: Run, script: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, _output = run("compare", "--layers", str(script), "--png", str(tmp_path / "x.png"))
    assert status == 1
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "words", [("--layers", "run.sh", "--standard", "parity"), ("a.log", "b.log", "--architecture", "qwen3")]
)
def test_options_of_another_comparison_are_refused(run: Run, words: tuple[str, ...]) -> None:
    status, output = run("compare", *words)
    assert status == 2
    assert "cannot be used with" in output
