"""Changes that are torchrun's options, or a variable."""

from __future__ import annotations

from verl_npu.plan.launch import is_setting, launched_with
from verl_npu.rehearse.trainer import Trainer


def test_changes_of_options_are_not_settings(torchrun: Trainer) -> None:
    changes = (("data.max_length", 5), ("--nnodes", 4), ("--nproc_per_node", 16))
    assert [is_setting(key) for key, _ in changes] == [True, False, False]
    launched = launched_with(torchrun, changes)
    assert (launched.ranks, launched.nodes) == (16, 4)


def test_other_changes_leave_them_as_they_are(torchrun: Trainer) -> None:
    assert launched_with(torchrun, (("data.max_length", 5),)) == torchrun


def test_a_variable_is_no_setting_and_is_exported(torchrun: Trainer) -> None:
    assert not is_setting("VERL_NPU_TOKEN_BUDGET")
    launched = launched_with(torchrun, (("VERL_NPU_TOKEN_BUDGET", 1),))
    assert launched.exports == {**torchrun.exports, "VERL_NPU_TOKEN_BUDGET": "1"}
