"""Saving through a bridge of an older mbridge than upstream was written against."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_npu.features.megatron.patches.bridges import drop_save_options_unknown_to_mbridge


class Released:
    """`save_weights` as mbridge 0.15.1 has it."""

    def __init__(self, index: dict[str, str]) -> None:
        self.saved: list[tuple[Any, ...]] = []
        self.safetensor_io = SimpleNamespace(index=index)

    def save_weights(self, models: list[Any], weights_path: str, memory_efficient: bool = False) -> None:
        self.saved.append((models, weights_path, memory_efficient))


class Newer(Released):
    def save_weights(self, models, weights_path, memory_efficient=False, distributed_filesystem=False):  # type: ignore[no-untyped-def,override]
        self.saved.append((models, weights_path, memory_efficient, distributed_filesystem))


def save_checkpoint(manager: Any, path: str) -> None:
    """As upstream does it at ccd7d934."""
    manager.bridge.save_weights(["model"], path, distributed_filesystem=True, memory_efficient=True)


FILES = {"weight": "model-00001-of-00002.safetensors"}


@pytest.mark.parametrize(
    ("bridge", "passed"),
    [
        (Released(FILES), (True,)),
        (Newer(FILES), (True, True)),
        # mbridge wants to know from the index which tensor goes to which file.
        (Released({}), (False,)),
        (Newer({}), (False, True)),
    ],
)
def test_a_bridge_is_given_the_options_that_it_can_follow(bridge: Released, passed: tuple[bool, ...]) -> None:
    drop_save_options_unknown_to_mbridge(save_checkpoint, SimpleNamespace(bridge=bridge), "folder")
    assert bridge.saved == [(["model"], "folder", *passed)]
    assert "save_weights" not in vars(bridge)


def test_a_failed_save_leaves_the_bridge_as_it_was() -> None:
    bridge = Released(FILES)

    def fail(manager: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        drop_save_options_unknown_to_mbridge(fail, SimpleNamespace(bridge=bridge))
    assert "save_weights" not in vars(bridge)


def test_without_a_bridge_upstream_saves_by_itself() -> None:
    assert drop_save_options_unknown_to_mbridge(lambda manager: "saved", SimpleNamespace(bridge=None)) == "saved"
