"""A folder is there once the model in it was read back, and not before; a checkpoint is only read."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.checkpoint import merging
from verl_npu_workbench.checkpoint.layout import Layout, find

from verl_npu.errors import CheckpointError

from .conftest import Save, Tensors

safetensors = pytest.importorskip("safetensors.torch")
Upstream = Callable[[Tensors], None]
QUIET: list[str] = []


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """Let upstream's merger write these tensors."""

    def writes(tensors: Tensors) -> None:
        def write(layout: Layout, folder: Path, options: tuple[str, ...]) -> None:
            safetensors.save_file({name: each.bfloat16() for name, each in tensors.items()}, folder / "m.safetensors")
            (folder / "config.json").write_text("{}")

        monkeypatch.setattr(merging, "_upstream", write)
        monkeypatch.setattr(merging, "_need", lambda layout: None)

    return writes


def merge(folder: Path, target: Path) -> merging.Merged:
    return merging.merge(find(folder), target, (), QUIET.append)


def state(folder: Path) -> dict[str, str]:
    """Each file below a folder, with a hash of its content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_model_that_is_the_shards_is_put_in_place(
    save_fsdp: Save, upstream: Upstream, tensors: Tensors, tmp_path: Path
) -> None:
    upstream(tensors)
    made = merge(save_fsdp(), tmp_path / "out" / "model")
    assert made.compared.tensors == len(tensors)
    assert sorted(path.name for path in (tmp_path / "out" / "model").iterdir()) == ["config.json", "m.safetensors"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


def test_a_model_that_is_not_the_shards_is_thrown_away(
    save_megatron: Save, upstream: Upstream, tensors: Tensors, tmp_path: Path
) -> None:
    checkpoint = save_megatron()
    before = state(checkpoint)
    upstream({**tensors, "lm_head.weight": tensors["lm_head.weight"].flip(0)})
    with pytest.raises(CheckpointError, match=r"expected lm_head\.weight with the shards' values"):
        merge(checkpoint, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []
    assert state(checkpoint) == before


def test_a_missing_shard_is_said_before_anything_is_written(
    save_fsdp: Save, upstream: Upstream, tensors: Tensors, tmp_path: Path
) -> None:
    upstream(tensors)
    checkpoint = save_fsdp()
    (checkpoint / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError, match=r"rank_1\.pt"):
        merge(checkpoint, tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_not_written_to(save_fsdp: Save, upstream: Upstream, tmp_path: Path) -> None:
    upstream({})
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointError, match=r"a folder that does not exist yet"):
        merge(save_fsdp(), tmp_path / "model")


@pytest.mark.parametrize("missing", ["megatron", "safetensors"])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    save_megatron: Save, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return (
            None if name == missing else found("json") if name.split(".")[0] in ("verl", "megatron") else found(name)
        )

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(CheckpointError, match=rf"expected the package {missing}.*; pip install {missing}"):
        merge(save_megatron(), tmp_path / "model")


def test_an_error_of_upstreams_merger_is_one_line_with_its_last_words(
    save_fsdp: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "Loading\n\nNotImplementedError: Unknown architecture ['X']\n")

    monkeypatch.setattr(merging, "_need", lambda layout: None)
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(CheckpointError, match=r"status 1: Loading / NotImplementedError: Unknown architecture"):
        merge(save_fsdp(), tmp_path / "model")
    assert not (tmp_path / "model").exists()
