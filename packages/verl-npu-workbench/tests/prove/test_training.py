from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from verl_npu_workbench.prove.record import NotPossible, Recorder, Wrong
from verl_npu_workbench.prove.stages import training
from verl_npu_workbench.prove.stages.setup import Setup
from verl_npu_workbench.rehearse.training import Run
from verl_npu_workbench.sandbox import Ended

from verl_npu.cli import main as command
from verl_npu.errors import RolloutError

GIB = 1 << 30


def run(*gradients: float, peak: float = 2.0) -> Run:
    """Return a run that ended well, with a step for each norm of a gradient."""
    steps = {
        number: {"actor/grad_norm": norm, "perf/max_memory_allocated_gb": peak if number == 2 else 0.5}
        for number, norm in enumerate(gradients, 1)
    }
    return Run(Ended(status=0, output=b"", seconds=1.0), steps, (), ())


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    later = time.monotonic() + 60
    with closing(Recorder(tmp_path / "record.jsonl", later, time.monotonic)) as record:
        return Setup(record=record, scratch=tmp_path, asked=0, ends=later, now=time.monotonic)


def judged(done: Run) -> dict[str, float]:
    figures = training._figures(done)
    training._check_numbers(done, figures)
    return figures


def test_a_training_is_told_by_its_last_step_and_its_largest_memory() -> None:
    found = judged(run(3.0, 2.0, 1.0))
    assert (found["actor/grad_norm"], found["GiB of tensors"]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("gradients", "said"),
    [((1.0, float("nan")), "the gradient norms are"), ((0.0, 0.0), "all gradients are zero")],
)
def test_gradients_that_train_nothing_are_wrong(gradients: tuple[float, ...], said: str) -> None:
    with pytest.raises(Wrong, match=said):
        judged(run(*gradients))


def test_memory_within_a_tenth_of_the_plan_is_told_beside_it(setup: Setup) -> None:
    planned(setup, 1.9)
    said = training._beside(setup, "grpo", judged(run(1.0, 1.0)))
    assert said.startswith("2.000 GiB of tensors at most, planned 1.900 (")


def test_memory_that_the_plan_did_not_know_of_is_wrong(setup: Setup) -> None:
    planned(setup, 1.7)
    with pytest.raises(Wrong, match=r"planned 1\.700"):
        training._beside(setup, "grpo", judged(run(1.0, 1.0)))


def test_without_a_plan_a_training_is_judged_alone(setup: Setup) -> None:
    assert training._beside(setup, "grpo", judged(run(1.0, 1.0))) == "there is no plan to compare with"


def test_layers_that_differ_by_more_than_rounding_are_wrong(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = {"tokens": 36, "k1": 0.0, "k3": 0.5, "mean_difference": 0.0, "max_difference": 0.0}
    result: dict[str, Any] = {"engine": "vllm 1", "trainer": "transformers", "cause": None, "remaining": None}
    result |= {"first": None, "graphs": None, "sides": {}, "numbers": apart | {"beyond": 0.0, "effective": 1.0}}
    monkeypatch.setattr(training, "compare_layers", lambda *given: result)
    made: Any = SimpleNamespace(settings=None)
    text, figures = training._layers(setup, made)
    assert text.startswith("vllm 1, transformers: No operator differs by more than rounding. kl 0.00e+00 (k1)")
    assert figures["k3 of engine and trainer"] == 0.5
    operator = {"side": "engine", "operator": "norm", "verdict": "different", "error": 0.1, "rounding": 0.01}
    monkeypatch.setitem(result, "first", operator)
    with pytest.raises(Wrong, match="engine, norm: different"):
        training._layers(setup, made)


def test_layers_of_an_unknown_model_are_not_compared(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise RolloutError(subject="the model type x", found="another type", fix="none")

    monkeypatch.setattr(training, "compare_layers", refuse)
    made: Any = SimpleNamespace(settings=None)
    with pytest.raises(NotPossible, match="the model type x"):
        training._layers(setup, made)


def planned(setup: Setup, most: float) -> None:
    content = {"verdict": "fits", "bytes": {"load": GIB, "update actor": most * GIB}, "seconds": {}}
    (setup.scratch / "plan-grpo.json").write_text(json.dumps(content))


def test_a_script_that_is_not_there_is_one_error_before_anything_runs(tmp_path: Path) -> None:
    words = ["prove", "--output", str(tmp_path / "proof"), "--stage", "training", "--recipe", "run.sh"]
    ended = CliRunner().invoke(command, words)
    assert ended.exit_code == 2
    assert ended.output.startswith("verl-npu: --recipe run.sh: the launch script does not exist; ")
    assert not (tmp_path / "proof").exists()


def test_arguments_without_a_script_are_one_error_before_anything_runs(tmp_path: Path) -> None:
    ended = CliRunner().invoke(command, ["prove", "--output", str(tmp_path / "proof"), "trainer.nnodes=1"])
    assert ended.exit_code == 2
    assert "trainer.nnodes=1: arguments are passed only to the script that --recipe names" in ended.output
    assert "or choose a stage with --stage STAGE" in ended.output
    assert "or choose a stage with --stage training" in CliRunner().invoke(command, ["prove", "training"]).output
    assert not (tmp_path / "proof").exists()


def test_where_there_can_be_no_npu_that_is_said_once_and_no_stage_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    ended = CliRunner().invoke(command, ["prove", "--output", str(tmp_path / "proof")])
    assert (ended.exit_code, len(ended.output.splitlines())) == (2, 1)
    assert ended.output.startswith("verl-npu: torch_npu: the package torch_npu, which NPUs need")
    assert "or set VIRTUAL_ASCEND=2" in ended.output
    assert not (tmp_path / "proof").exists()
