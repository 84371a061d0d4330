"""NPUs that are torchrun's options."""

from __future__ import annotations

from verl_npu.plan.tuning.launch import is_option, launched_with
from verl_npu.rehearse.trainer import Trainer


def test_changes_of_options_are_not_settings(torchrun: Trainer) -> None:
    changes = (("data.max_length", 5), ("--nnodes", 4), ("--nproc_per_node", 16))
    assert [is_option(key) for key, _ in changes] == [False, True, True]
    launched = launched_with(torchrun, changes)
    assert (launched.ranks, launched.nodes) == (16, 4)


def test_other_changes_leave_them_as_they_are(torchrun: Trainer) -> None:
    assert launched_with(torchrun, (("data.max_length", 5),)) == torchrun
