"""One stage of a pipeline knows the tensors that its neighbors would send."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl_npu_workbench.plan.job import Phase
from verl_npu_workbench.plan.rank import megatron as module
from verl_npu_workbench.plan.rank.megatron import Neighbours, not_shown, prepare, rows

HIDDEN = 16


@pytest.mark.parametrize(
    ("tensor", "context", "expected"),
    [
        (1, 1, 5 + 8),
        (2, 1, (6 + 8) // 2),  # 5 tokens are padded to an even number, and the ranks divide the rows
        (1, 2, (8 + 8) // 2),  # each of two ranks has two chunks of a sequence, so 5 are padded to a multiple of 4
        (2, 2, (8 + 8) // 4),
    ],
)
def test_rows_are_padded_and_divided_as_verl_does(tensor: int, context: int, expected: int) -> None:
    assert rows([5, 8], tensor, context) == expected


def test_a_middle_stage_receives_each_micro_batch_and_the_gradients_of_what_it_sent() -> None:
    stage = Neighbours()
    stage.begin([3, 7])
    assert stage.shapes(None, True, False, HIDDEN) == ((3, 1, HIDDEN), None)
    assert stage.shapes((3, 1, HIDDEN), True, False, HIDDEN) == ((7, 1, HIDDEN), None)
    assert stage.shapes((7, 1, HIDDEN), False, True, HIDDEN) == (None, (3, 1, HIDDEN))
    assert stage.shapes(None, False, True, HIDDEN) == (None, (7, 1, HIDDEN))


def test_gradients_that_were_not_received_do_not_come_in_the_next_phase() -> None:
    stage = Neighbours()
    stage.begin([3])
    stage.shapes((3, 1, HIDDEN), False, False, HIDDEN)
    stage.begin([7])
    assert stage.shapes((7, 1, HIDDEN), False, True, HIDDEN) == (None, (7, 1, HIDDEN))


@pytest.mark.parametrize(
    ("section", "hidden"),
    [
        ({}, False),
        ({"use_mbridge": True}, False),
        ({"use_mbridge": True, "vanilla_mbridge": True}, False),
        ({"use_mbridge": True, "vanilla_mbridge": False}, True),
        ({"use_mbridge": False, "vanilla_mbridge": False}, False),
    ],
)
def test_a_bridge_that_reads_a_checkpoint_cannot_hand_over_weights(section: dict[str, bool], hidden: bool) -> None:
    megatron = {"pipeline_model_parallel_size": 1, **section}
    roles = OmegaConf.create({"actor": {"strategy": "megatron", "megatron": megatron}})
    assert (Phase.WEIGHT_SYNC in not_shown(roles)) is hidden


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a made-up module of verl whose functions would load checkpoints, prepared for a rank."""

    def load_mcore_dist_weights(models: object, path: str | None, is_value_model: bool = False) -> None:
        raise TypeError(f"no checkpoint at {path}")

    found = SimpleNamespace(
        load_megatron_gptmodel_weights=load_mcore_dist_weights, load_mcore_dist_weights=load_mcore_dist_weights
    )
    monkeypatch.setitem(sys.modules, "verl.utils.model", found)
    monkeypatch.setattr(module, "_MODULES", ("verl.utils.model",))
    monkeypatch.setattr(module, "_BRIDGES", ())
    prepare(
        OmegaConf.create(
            {"actor": {"strategy": "megatron", "megatron": {"pipeline_model_parallel_size": 1}}, "model": {}}
        )
    )
    return found


def test_no_checkpoint_is_read(verl: Any) -> None:
    verl.load_mcore_dist_weights([], "/checkpoint", is_value_model=False)
    verl.load_megatron_gptmodel_weights([], None)


def test_a_distributed_checkpoint_without_a_path_is_refused_as_upstream_does(verl: Any) -> None:
    with pytest.raises(TypeError, match="no checkpoint at None"):
        verl.load_mcore_dist_weights([], None, is_value_model=False)
