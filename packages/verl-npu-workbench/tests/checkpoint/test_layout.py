"""What a folder holds is told by its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from verl_npu_workbench.checkpoint.layout import Backend, find

from verl_npu.errors import CheckpointError

from .conftest import Save


@pytest.mark.parametrize(("version", "backend"), [(1, Backend.FSDP), (2, Backend.FSDP2)])
def test_fsdp_and_fsdp2_are_told_apart(save_fsdp: Save, version: int, backend: Backend) -> None:
    assert find(save_fsdp(version=version)).backend is backend


@pytest.mark.parametrize("below", ["", "model"])
def test_megatron_is_told_in_both_of_upstreams_layouts(save_megatron: Save, below: str) -> None:
    folder = save_megatron(below)
    found = find(folder)
    assert (found.backend, found.huggingface) == (Backend.MEGATRON, folder / below / "huggingface")


@pytest.mark.parametrize("up", [0, 1, 2])
def test_the_folder_of_the_job_of_a_step_and_of_the_actor_are_all_taken(save_fsdp: Save, up: int) -> None:
    actor = save_fsdp()
    assert find([actor, *actor.parents][up]).folder == actor


def test_of_a_jobs_steps_the_last_that_was_finished_is_taken(save_fsdp: Save) -> None:
    actor = save_fsdp()
    root = actor.parents[1]
    shutil.copytree(root / "global_step_3", root / "global_step_20")
    assert find(root).folder == root / "global_step_20" / "actor"
    (root / "latest_checkpointed_iteration.txt").write_text("3")
    assert find(root).folder == actor


def test_a_step_that_is_written_down_and_gone_is_an_error(save_fsdp: Save) -> None:
    root = save_fsdp().parents[1]
    (root / "latest_checkpointed_iteration.txt").write_text("9")
    with pytest.raises(CheckpointError, match=r"one of the steps 3, found 9"):
        find(root)


def test_a_model_that_is_whole_already_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"whole already in .*huggingface; use that folder"):
        find(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"world_size": 0, "FSDP_version": 2})])
def test_shards_without_their_own_configuration_are_one_error(save_fsdp: Save, content: str | None) -> None:
    path = save_fsdp() / "fsdp_config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(CheckpointError, match=r"fsdp_config\.json: expected the JSON"):
        find(path.parent)


def test_shards_without_the_models_configuration_are_one_error(save_fsdp: Save) -> None:
    folder = save_fsdp()
    (folder / "huggingface" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: expected the model's configuration"):
        find(folder)


def test_another_folder_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"found an empty folder"):
        find(tmp_path)
    with pytest.raises(CheckpointError, match=r"found no such folder"):
        find(tmp_path / "none")
