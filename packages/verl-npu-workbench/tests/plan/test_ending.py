from __future__ import annotations

import _thread
import time
from threading import Event

import pytest
from verl_npu_workbench.plan import planning
from verl_npu_workbench.plan.job import Outcome, RankJob

from .conftest import job_of


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_does_not_wait_for_the_ranks() -> None:
    def run(job: RankJob, ended: Event) -> Outcome:
        _thread.interrupt_main()
        ended.wait(60)
        raise InterruptedError

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        planning._together([job_of(), job_of()], run)
    assert time.monotonic() - began < 30
