"""`verl-npu merge`: what it prints of a merged checkpoint, and what of one that cannot be merged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.conftest import Save, Tensors, save_fsdp, save_megatron, tensors
from tests.checkpoint.test_merging import Upstream, upstream

from .conftest import Run

__all__ = ["save_fsdp", "save_megatron", "tensors", "upstream"]  # fixtures


@pytest.fixture
def merged(run: Run, save_fsdp: Save, upstream: Upstream, tensors: Tensors) -> Callable[..., tuple[int, str]]:
    """Merge a checkpoint whose shards are what upstream's merger writes."""

    def call(*arguments: str) -> tuple[int, str]:
        upstream(tensors)
        return run("merge", str(save_fsdp().parents[1]), *arguments)

    return call


def test_merged_is_said_with_what_was_compared(
    merged: Callable[..., tuple[int, str]], tensors: Tensors, tmp_path: Path
) -> None:
    status, output = merged()
    assert status == 0
    target = tmp_path / "checkpoints" / "global_step_3" / "actor-merged"
    assert f"merged: {target}" in output.replace("\n", "")
    said = " ".join(output.split())
    values = sum(each.numel() for each in tensors.values())
    assert f"27 tensors with {values} values are those of the shards, bit by bit" in said
    assert "(bfloat16, to which verl rounds the shards' float32)" in said
    assert (target / "m.safetensors").is_file()


def test_as_json_it_is_one_object(merged: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, output = merged("--json", "--target", str(tmp_path / "model"))
    assert status == 0
    found = json.loads(output)
    assert (found["backend"], found["tensors"], found["target"]) == ("FSDP2", 27, str(tmp_path / "model"))


def test_a_value_model_is_said_to_be_one(merged: Callable[..., tuple[int, str]], tensors: Tensors) -> None:
    tensors["score.weight"] = tensors.pop("lm_head.weight")[:1]
    status, output = merged()
    assert status == 0
    assert "a value model: load it by AutoModelForTokenClassification" in " ".join(output.split())


def test_a_missing_shard_is_one_line_and_status_2(
    run: Run, save_fsdp: Save, upstream: Upstream, tensors: Tensors, tmp_path: Path
) -> None:
    upstream(tensors)
    folder = save_fsdp()
    shard = folder / "model_world_size_2_rank_1.pt"
    shard.unlink()
    status, output = run("merge", str(folder), "--target", str(tmp_path / "model"))
    assert status == 2
    assert f"verl-npu: {shard}: expected a whole shard of the checkpoint, found no such file" in output
    assert "merged" not in output
    assert not (tmp_path / "model").exists()


def test_a_folder_without_a_checkpoint_is_one_line_and_status_2(run: Run, tmp_path: Path) -> None:
    status, output = run("merge", str(tmp_path))
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith(f"verl-npu: {tmp_path}: expected a folder with model_world_size_N_rank_R.pt (FSDP)")
