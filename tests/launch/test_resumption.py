"""Whether a restart goes on where the job was."""

from __future__ import annotations

import pytest

from verl_npu.errors import LaunchError
from verl_npu.launch.resumption import judge

PPO = ("python", "-m", "verl.trainer.main_ppo")


def test_a_job_that_would_begin_anew_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"trainer\.resume_mode=disable"):
        [*judge([*PPO, "trainer.resume_mode=disable"])]


@pytest.mark.parametrize("saves", [(), ("trainer.save_freq=-1",), ("+trainer.save_freq=0",)])
def test_a_job_that_saves_nothing_is_warned_of(saves: tuple[str, ...]) -> None:
    assert "save_freq" in "".join(judge([*PPO, *saves]))


def test_a_job_that_goes_on_from_one_checkpoint_is_warned_of() -> None:
    assert "resume_path" in "".join(judge([*PPO, "trainer.resume_mode=resume_path", "trainer.save_freq=5"]))


@pytest.mark.parametrize(
    "command", [("bash", "run.sh"), (*PPO, "trainer.save_freq=5"), (*PPO, "trainer.save_freq=${every}")]
)
def test_nothing_is_said_of_what_goes_on_or_cannot_be_seen(command: tuple[str, ...]) -> None:
    assert [*judge(command)] == []
