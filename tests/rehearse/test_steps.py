from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.rehearse.steps import Steps, parse


@pytest.mark.parametrize(
    "line",
    [
        "step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "\x1b[36m(TaskRunner pid=12)\x1b[0m step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "Epoch 1/8:  6%|x| 1/16 [00:03<00:49,  3.30s/it]step:3 - critic/score/mean:0.5 - timing_s/step:1.25",
        "(TaskRunner pid=12) step:3 - critic/score/mean:np.float64(0.5) - timing_s/step:1.25e+00 - note:text",
    ],
)
def test_step_lines(line: str) -> None:
    assert parse(line) == (3, {"critic/score/mean": 0.5, "timing_s/step": 1.25})


@pytest.mark.parametrize("line", ["", "Training Progress: 3/40", "step:3", "global_step:3 - a:1", "epoch 1, step: 2"])
def test_other_lines(line: str) -> None:
    assert parse(line) is None


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
