"""A shard that is missing, cut short or damaged is one error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.checkpoint.layout import check, find

from verl_npu.errors import CheckpointError

from .conftest import Save, Tensors


def fault(folder: Path) -> str:
    """What is said of a checkpoint, which has to be one line."""
    with pytest.raises(CheckpointError) as caught:
        check(find(folder))
    said = str(caught.value)
    assert "\n" not in said
    return said


def damage(path: Path, tensor: Any) -> None:
    """Change one bit of a tensor's values; the table of contents stays whole."""
    content = bytearray(path.read_bytes())
    content[content.index(tensor.numpy().tobytes())] ^= 1
    path.write_bytes(bytes(content))


def test_a_whole_checkpoint_passes(save_fsdp: Save) -> None:
    check(find(save_fsdp()))


def test_a_whole_checkpoint_of_megatrons_passes(save_megatron: Save) -> None:
    check(find(save_megatron()))


def test_a_missing_shard_is_named(save_fsdp: Save) -> None:
    folder = save_fsdp((4,))
    (folder / "model_world_size_4_rank_2.pt").unlink()
    assert "model_world_size_4_rank_2.pt: expected a whole shard of the checkpoint, found no such file;" in fault(
        folder
    )


def test_several_missing_shards_are_counted(save_fsdp: Save) -> None:
    folder = save_fsdp((4,))
    for rank in (1, 2, 3):
        (folder / f"model_world_size_4_rank_{rank}.pt").unlink()
    assert "rank_1.pt" in (said := fault(folder))
    assert "and 2 more" in said


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_a_shard_that_was_cut_short_is_named(save_fsdp: Save, share: float) -> None:
    folder = save_fsdp()
    path = folder / "model_world_size_2_rank_1.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert f"{path}: expected a whole shard" in fault(folder)


def test_a_shard_with_one_wrong_byte_is_named(save_fsdp: Save, tensors: Tensors) -> None:
    folder = save_fsdp()
    path = folder / "model_world_size_2_rank_0.pt"
    damage(path, tensors["lm_head.weight"][:5])
    assert str(path) in fault(folder)


def test_a_file_of_megatrons_that_is_missing_or_cut_short_is_named(save_megatron: Save) -> None:
    folder = save_megatron()
    (path,) = (folder / "dist_ckpt").glob("*.distcp")
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    assert f"{path}: expected a whole shard of the checkpoint, found {len(content) - 100} of " in fault(folder)
    path.unlink()
    assert f"{path}: expected a whole shard of the checkpoint, found no such file" in fault(folder)


def test_a_file_of_megatrons_with_one_wrong_byte_is_named(save_megatron: Save, tensors: Tensors) -> None:
    folder = save_megatron()
    (path,) = (folder / "dist_ckpt").glob("*.distcp")
    damage(path, tensors["lm_head.weight"])
    assert f"{path}: expected a whole shard of the checkpoint, found at byte " in fault(folder)


def test_megatrons_metadata_that_are_missing_are_named(save_megatron: Save) -> None:
    folder = save_megatron()
    (folder / "dist_ckpt" / ".metadata").unlink()
    assert ".metadata: expected a whole shard of the checkpoint, found no such file" in fault(folder)
    (folder / "dist_ckpt" / ".metadata").write_bytes(b"\x80")
    assert ".metadata: expected what torch and Megatron save, and nothing else, found a file that cannot" in fault(
        folder
    )
