from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from verl_npu_workbench.comparison.standards import BASELINES

from tests.logs.conftest import Write, line, write

from .conftest import Run

__all__ = ["write"]  # a fixture

Row = tuple[int, dict[str, float]]
REWARD, DRIFT = "critic/rewards/mean", "training/rollout_probs_diff_mean"


def rows(steps: Sequence[int], seed: int, nan_at: int | None = None) -> list[Row]:
    """Return a row for each step, in the order of a file, with noise that depends only on the seed."""
    noise = random.Random(seed)
    made = []
    for step in steps:
        metrics = {
            REWARD: 0.3 + 0.02 * noise.random(),
            "actor/entropy": 2.0 - 0.01 * step,
            "actor/perf/max_memory_allocated_gb": 20 + noise.random() / 2,
            "perf/throughput": 200 + noise.random(),
            "timing_s/step": 80 + noise.random(),
            DRIFT: 0.005 + 0.00001 * noise.random(),
        }
        if step == nan_at:
            metrics[REWARD] = math.nan
        made.append((step, metrics))
    return made


def text(made: Sequence[Row]) -> str:
    return "".join(line(step, metrics) for step, metrics in made)


def found(report: dict) -> dict[tuple[str, str], float]:
    return {
        (standard["name"], criterion["name"]): criterion["value"]
        for standard in report["standards"]
        for criterion in standard["criteria"]
        if criterion["value"] is not None
    }


def test_logs_with_gaps_and_restarts_are_compared_at_common_steps_by_their_last_run(run: Run, write: Write) -> None:
    """Each log has a 9 at a step that it runs again, and at a step that the other log lacks."""
    a = [(step, {REWARD: value}) for step, value in ((1, 0.5), (2, 9.0), (2, 0.5), (4, 0.6), (5, 9.0))]
    b = [(step, {REWARD: value}) for step, value in ((3, 9.0), (4, 9.0), (1, 0.4), (2, 0.5), (4, 0.5))]
    _, output = run("compare", str(write(text(a), "a.log")), str(write(text(b), "b.log")), "--json")
    # Differences of 0.1, 0 and 0.1 at the steps 1, 2 and 4, in percent.
    assert found(json.loads(output)) == {("parity", "reward"): pytest.approx(20 / 3)}


def test_damaged_logs_lose_what_is_damaged_and_no_more(run: Run, write: Write) -> None:
    a, b = rows(range(1, 16), 1), rows(range(1, 16), 2)
    damaged = text(a).replace("perf/throughput:", "perf/throughput:x", 1)
    # The last line is cut within the number of its last metric, which no other step lacks.
    cut = damaged.rstrip("\n")[:-3]
    status, output = run("compare", str(write(cut, "a.log")), str(write(text(b), "b.log")), "--json")
    report = json.loads(output)
    assert status == 0
    assert (report["npu"]["damaged"], report["npu"]["cut"]) == (1, True)
    steps = {metric["names"][0]: metric["steps"] for metric in report["metrics"]}
    assert steps[REWARD] == list(range(1, 16))
    assert steps["perf/throughput"] == list(range(2, 16))
    assert steps[DRIFT] == list(range(1, 15))


def test_a_reward_that_is_nan_is_outside(run: Run, write: Write) -> None:
    a, b = rows(range(1, 16), 1, nan_at=9), rows(range(1, 16), 2)
    status, output = run("compare", str(write(text(a), "a.log")), str(write(text(b), "b.log")), "--json")
    report = json.loads(output, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (status, report["verdict"]) == (1, "outside")
    metric = next(metric for metric in report["metrics"] if metric["names"] == [REWARD])
    assert (metric["npu"][8], metric["largest_difference_at"]) == ("nan", 9)


def test_the_verdict_is_of_the_standard_that_was_asked_for(run: Run, write: Write) -> None:
    a = [(step, {**metrics, "timing_s/step": 99.0}) for step, metrics in rows(range(1, 16), 1)]
    logs = str(write(text(a), "a.log")), str(write(text(rows(range(1, 16), 1)), "b.log"))
    assert run("compare", *logs)[0] == 0
    status, output = run("compare", *logs, "--standard", "regression")
    assert status == 1
    assert re.search(r"step time +outside +99 +80\.\d+ +2\d\.\d+ % +at most 5 % more", output)
    assert output.splitlines()[-1] == "outside: by the standard regression, 5 of 5 criteria shown."
    assert run("compare", *logs, "--standard", "regression", "--standard", "parity")[0] == 1


def test_logs_that_share_nothing_are_status_2(run: Run, write: Write) -> None:
    logs = str(write(text(rows([1, 2], 1)), "a.log")), str(write(text(rows([7, 8], 1)), "b.log"))
    status, output = run("compare", *logs)
    assert status == 2
    assert output.splitlines()[-1] == "not shown: by the standard parity, 0 of 2 criteria shown."


def test_what_a_reader_must_know_is_said(run: Run, write: Write) -> None:
    a = rows([1, 2, 3, 2, 4, 7], 1)
    simulated = "verl-npu: 0.1.0: SIMULATED: virtual NPUs\n"
    logs = str(write(simulated + text(a), "a.log")), str(write(text(rows(range(1, 16), 1)), "b.log"))
    _, output = run("compare", *logs, columns=40)
    said = " ".join(output.split())
    assert "the log goes back from step 3 to step 2" in said
    assert "the log has no line for step 5 to 6" in said
    assert said.endswith("criteria shown. SIMULATED")


EXTREMES = [0.0, 1e308, -1e308, 1.7e308, 5e-324, math.inf, -math.inf, math.nan, 0.5]


def test_no_number_is_an_error(run: Run, write: Write, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotext")
    drawn = random.Random(0)
    logs = []
    for name in ("a.log", "b.log"):
        made = [
            (step, dict.fromkeys([REWARD, DRIFT, "timing_s/step", "timing_s/gen", "actor/grad_norm"], value))
            for step, value in enumerate(drawn.choices(EXTREMES, k=12))
        ]
        logs.append(str(write(text([*made, (10**14, made[0][1])]), name)))
    files = ["--html", str(tmp_path / "x.html"), "--png", str(tmp_path / "x.png")]
    for arguments in (["compare", *logs, *files], ["compare", *logs, "--json"], ["watch", "--once", logs[0]]):
        assert run(*arguments)[0] in (0, 1, 2)
    assert (tmp_path / "x.html").is_file()


# Published figures.


def test_baselines_are_listed_with_their_source(run: Run) -> None:
    status, output = run("compare", "--list-baselines")
    assert status == 0
    assert [row.split()[0] for row in output.splitlines() if row[:3] in ("a2-", "a3-")] == list(BASELINES)
    assert "verl-project/verl-ascend-recipe" in output
    assert [each["name"] for each in json.loads(run("compare", "--list-baselines", "--json")[1])] == list(BASELINES)


def test_a_log_is_judged_by_published_figures(run: Run, write: Write) -> None:
    name = "a2-gspo-qwen3-8b-fsdp2"
    log = str(write(text(rows(range(1, 16), 1))))
    status, output = run("compare", log, "--baseline", name, "--json")
    report = json.loads(output)
    assert (status, report["verdict"], report["judged_by"]) == (1, "outside", ["regression"])
    names = ("memory", "throughput", "step time", "reward", "rollout drift")
    assert found(report).keys() == {("regression", each) for each in names}
    assert found(report)["regression", "memory"] == pytest.approx(
        rows(range(1, 16), 1)[-1][1]["actor/perf/max_memory_allocated_gb"] - BASELINES[name].memory
    )


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "found no log"),
        (("LOG",), "found neither"),
        (("LOG", "LOG", "--baseline", "a2-ppo-qwen3-8b-fsdp"), "found both"),
        (("LOG", "none.log"), "none.log: expected a log of a training with verl"),
        (("EMPTY", "LOG"), "a file without a step"),
        (("LOG", "--baseline", "h100"), "expected one of the names a2-ppo-qwen3-8b-fsdp"),
        (("LOG", "--baseline", "a2-ppo-qwen3-8b-fsdp", "--png", "x.png"), "needs the values of each step"),
        (("LOG", "--baseline", "a2-ppo-qwen3-8b-fsdp", "--standard", "parity"), "needs the values of each step"),
        (("LOG", "LOG", "--html", "no/such/folder/x.html"), "--html: expected a file that can be written"),
        (("LOG", "LOG", "--png", "no/such/folder/x.png"), "--png: expected a file that can be written"),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, write: Write, tmp_path: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(option in arguments for option in ("--png", "--html")):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    paths = {"LOG": str(write(text(rows(range(1, 16), 1)))), "EMPTY": str(write("", "empty.log"))}
    status, output = run("compare", *(paths.get(argument, argument) for argument in arguments))
    assert status == 2
    (only,) = output.splitlines()
    assert only.startswith("verl-npu: ")
    assert said in only


def test_without_matplotlib_it_is_said_what_to_install(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_npu_workbench.extras.importlib.util.find_spec", lambda package: None)
    log = str(write(text(rows(range(1, 16), 1))))
    status, output = run("compare", log, log, "--png", str(tmp_path / "x.png"))
    assert status == 2
    assert output.splitlines() == [
        "verl-npu: --png: the package matplotlib is not installed; pip install 'verl-npu-workbench[report]'"
    ]


def test_a_name_cannot_command_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb.log"
    path.write_text(text(rows(range(1, 16), 1)))
    assert "\x1b" not in run("compare", str(path), str(path))[1]


@pytest.mark.parametrize("mode", [["--merged", "model", "checkpoint"], ["--list-baselines"]])
@pytest.mark.parametrize(
    "option", [["--baseline", "x"], ["--standard", "parity"], ["--png", "x.png"], ["--html", "x.html"]]
)
def test_an_option_that_would_be_ignored_is_refused(run: Run, mode: list[str], option: list[str]) -> None:
    status, output = run("compare", *mode, *option)
    assert status == 2
    assert f"{option[0]} cannot be used with {mode[0]}" in output
