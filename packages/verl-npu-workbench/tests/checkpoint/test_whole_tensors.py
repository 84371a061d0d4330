"""Our own reading of the shards gives the tensors that the trainer had, for each kind of checkpoint."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from verl_npu_workbench.checkpoint import fsdp, megatron
from verl_npu_workbench.checkpoint.layout import check, find
from verl_npu_workbench.checkpoint.megatron import Shape, parts_of

from verl_npu.errors import CheckpointError

from .conftest import Save, Tensors, rank_of, shard_of, torch

SHAPE = Shape(heads=4, groups=2, vocabulary=10, layers=2, shared_expert="shared_experts")


def same(one: Tensors, other: Tensors) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mesh", [(1,), (2,), (3,), (4,), (2, 2)])
def test_rows_over_a_mesh_are_put_together(save_fsdp: Save, tensors: Tensors, mesh: Sequence[int]) -> None:
    found = fsdp.whole_tensors(find(save_fsdp(mesh)))
    assert same({name: read() for name, read in found.items()}, tensors)


def test_a_replica_that_differs_is_an_error_that_names_the_ranks(save_fsdp: Save, tensors: Tensors) -> None:
    folder = save_fsdp((2, 2))
    with rank_of(3, 4):
        torch.save(
            shard_of({name: each + 1 for name, each in tensors.items()}, (2, 2), ("ddp", "fsdp"), 3),
            folder / "model_world_size_4_rank_3.pt",
        )
    found = fsdp.whole_tensors(find(folder))
    with pytest.raises(CheckpointError, match=r"differ between ranks \[0, 1\] and \[2, 3\]"):
        found["model.norm.weight"]()


def test_a_shard_with_other_tensors_is_an_error_that_names_it(save_fsdp: Save, tensors: Tensors) -> None:
    folder = save_fsdp()
    del tensors["lm_head.weight"]
    with rank_of(1, 2):
        torch.save(shard_of(tensors, (2,), ("fsdp",), 1), folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(CheckpointError, match=r"rank_1\.pt: .* lm_head\.weight the first"):
        fsdp.whole_tensors(find(folder))


def test_a_shard_that_would_run_a_program_is_not_read(save_fsdp: Save, tmp_path: Path) -> None:
    folder = save_fsdp()
    torch.save({"a": Runs(tmp_path / "ran")}, folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(CheckpointError, match=r"rank_1\.pt: expected tensors and DTensors"):
        fsdp.whole_tensors(find(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("function", [os.system, eval, getattr])
def test_what_refuses_a_shard_does_not_tell_how_to_run_it(save_fsdp: Save, function: Callable[..., object]) -> None:
    folder = save_fsdp()
    torch.save({"a": Calls(function, "true")}, folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(CheckpointError, match=f"{function.__name__}, which would be run") as refused:
        fsdp.whole_tensors(find(folder))
    assert "weights_only" not in str(refused.value)


def test_megatrons_metadata_that_would_run_a_program_are_not_read(save_megatron: Save, tmp_path: Path) -> None:
    folder = save_megatron()
    (folder / "dist_ckpt" / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match=r"\.metadata: .*, which would be run as it is read"):
        megatron.whole_tensors(find(folder))
    with pytest.raises(CheckpointError, match=r"\.metadata: .*, which would be run as it is read"):
        check(find(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../secret.distcp", "/etc/passwd", ""])
def test_megatrons_metadata_name_files_beside_them_alone(save_megatron: Save, name: str) -> None:
    folder = save_megatron()
    path = folder / "dist_ckpt" / ".metadata"
    known = pickle.loads(path.read_bytes())
    next(iter(known.storage_data.values())).relative_path = name
    path.write_bytes(pickle.dumps(known))
    with pytest.raises(CheckpointError, match="a part in "):
        check(find(folder))


def test_what_megatron_adds_to_the_metadata_needs_no_megatron(save_megatron: Save, tensors: Tensors) -> None:
    folder = save_megatron()
    path = folder / "dist_ckpt" / ".metadata"
    module = ModuleType("megatron.core.dist_checkpointing.strategies.torch")
    known = pickle.loads(path.read_bytes())
    module.MCoreMetadata = type("MCoreMetadata", (type(known),), {"__module__": module.__name__})
    parts = [module.__name__.rsplit(".", count)[0] for count in range(1, 5)]
    with pytest.MonkeyPatch.context() as patch:
        for name in [module.__name__, *parts]:
            patch.setitem(sys.modules, name, module)
        path.write_bytes(pickle.dumps(module.MCoreMetadata(**vars(known))))
    found = megatron.whole_tensors(find(folder))
    assert torch.equal(found["model.norm.weight"](), tensors["model.norm.weight"])


@pytest.mark.parametrize("legacy", [False, True])
def test_common_objects_that_would_run_a_program_are_not_merged(save_megatron: Save, legacy: bool) -> None:
    folder = save_megatron()
    content = {"lr_scheduler": {"max_lr": 1e-6}, "args": argparse.Namespace(a=torch.float32), "b": torch.ones(2)}
    torch.save(content, folder / "dist_ckpt" / "common.pt", _use_new_zipfile_serialization=not legacy)
    assert megatron.whole_tensors(find(folder))
    content["lr_scheduler"]["more"] = Calls(os.system, "true")
    torch.save(content, folder / "dist_ckpt" / "common.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=r"common\.pt: .*posix\.system, which would be run"):
        megatron.whole_tensors(find(folder))


def test_an_object_of_the_model_that_would_run_a_program_is_not_merged(save_megatron: Save) -> None:
    key = "decoder.layers.self_attention._extra_state/shard_0_1"
    folder = save_megatron(**{key: io.BytesIO(b"")})
    assert megatron.whole_tensors(find(folder))
    shutil.rmtree(folder.parent)
    folder = save_megatron(**{key: Calls(os.system, "true")})
    with pytest.raises(CheckpointError, match=r"distcp: .*posix\.system, which would be run"):
        megatron.whole_tensors(find(folder))


class Calls:
    """Unpickling it calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


class Runs:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.mkdir, (self.path,))


def test_a_format_that_only_torch_npu_reads_is_named_with_where_to_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rebuild() -> None: ...

    rebuild.__module__, rebuild.__qualname__ = "torch_npu.made_up", "rebuild"
    module = ModuleType("torch_npu.made_up")
    module.rebuild = rebuild  # type: ignore[attr-defined]
    path = tmp_path / "shard.pt"
    with monkeypatch.context() as there:
        there.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
        there.setitem(sys.modules, "torch_npu.made_up", module)
        torch.save({"weight": rebuild}, path)
    with pytest.raises(CheckpointError, match=r"\(torch_npu\.made_up\.rebuild\).*; merge it where torch_npu is"):
        fsdp._load(path)


def test_the_name_of_an_npu_is_read_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "device.pt"
    # The name is given to a whole process, so these are others.
    write = f"""
import torch
torch.utils.rename_privateuse1_backend("npu")
torch.save(torch.device("npu:0"), {str(path)!r})
"""
    subprocess.run([sys.executable, "-c", write], check=True)
    read = f"""
import torch
path = {str(path)!r}
try:
    torch.load(path, weights_only=True)
except RuntimeError as error:
    assert "npu" in str(error), error
else:
    raise SystemExit("there is a device npu")
from verl_npu_workbench.checkpoint.npu_names import allow_npu_names
allow_npu_names()
print(torch.load(path, weights_only=True))
"""
    done = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "npu:0"


@pytest.mark.parametrize("below", ["", "model"])
def test_megatrons_tensors_are_cut_and_named_as_transformers_has_them(
    save_megatron: Save, tensors: Tensors, below: str
) -> None:
    found = megatron.whole_tensors(find(save_megatron(below)))
    assert same({name: read() for name, read in found.items()}, tensors)


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_without_a_model_says_where_the_model_is(
    save_megatron: Save, tensors: Tensors, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.checkpoint.conftest.as_megatron", lambda tensors: {"optimizer.step": torch.ones(1)})
    folder = save_megatron()
    if whole:
        (folder / "huggingface" / "model.safetensors").touch()
    said = "use .*huggingface, where the job saved the whole model" if whole else "have the job save it"
    with pytest.raises(CheckpointError, match=f"expected the tensors of a model, found none; {said}"):
        megatron.whole_tensors(find(folder))


def test_a_value_model_of_megatrons_is_refused_since_upstream_makes_something_else_of_it(save_megatron: Save) -> None:
    folder = save_megatron(**{"output_layer.weight": torch.ones(1, 8), "output_layer.bias": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"dist_ckpt: expected a language model, found a value model"):
        megatron.whole_tensors(find(folder))


def test_a_tensor_of_megatrons_that_nobody_knows_is_an_error(save_megatron: Save) -> None:
    folder = save_megatron(**{"decoder.layers.mlp.odd.weight": torch.ones(2, 3)})
    with pytest.raises(CheckpointError, match=r"Megatron's tensor decoder\.layers\.mlp\.odd\.weight"):
        megatron.whole_tensors(find(folder))


def test_experts_are_taken_out_of_the_stack_of_layers_and_experts() -> None:
    gate, up = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    key = "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    tensor = torch.cat([gate, up], dim=2)
    found = {name: cut(tensor) for name, cut in parts_of(key, tuple(tensor.shape), SHAPE)}
    expected = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": half[layer, expert]
        for layer in range(2)
        for expert in range(3)
        for name, half in (("gate", gate), ("up", up))
    }
    assert same(found, expected)


def test_a_layer_by_its_number_is_not_taken_for_a_stack() -> None:
    found = list(parts_of("decoder.layers.1.mlp.router.weight", (3, 8), SHAPE))
    assert [name for name, _ in found] == ["model.layers.1.mlp.gate.weight"]


def test_a_stack_of_other_layers_than_the_model_has_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"expected 2 layers, as config\.json says, found 3"):
        list(parts_of("decoder.layers.mlp.linear_fc2.weight", (3, 8, 6), SHAPE))
