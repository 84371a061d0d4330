from __future__ import annotations

from pathlib import Path

from verl_npu.rehearse.steps import Steps


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
