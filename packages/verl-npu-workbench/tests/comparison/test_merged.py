from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.comparison.megatron_shards import parts_of
from verl_npu_workbench.comparison.merged import Merged, compare

from verl_npu.errors import SourceError

from .checkpoints import CONFIG, Tensors, model, save_fsdp, save_megatron, save_model, save_shard, torch

pytest.importorskip("safetensors.torch")
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
Compare = Callable[..., Merged]


@pytest.fixture
def tensors() -> Tensors:
    """Return the model from which all checkpoints here are made."""
    return model()


@pytest.fixture
def compared(tmp_path: Path) -> Compare:
    """Return a function that saves a model and a checkpoint of two ranks, and compares them."""

    def call(merged: Tensors, shards: Tensors, **config: Any) -> Merged:
        save_model(tmp_path / "merged", merged, CONFIG | config)
        if not (tmp_path / "actor").exists():
            save_fsdp(tmp_path / "actor", shards)
        return compare(tmp_path / "merged", tmp_path / "actor")

    return call


def rounded(tensors: Tensors) -> Tensors:
    return {name: each.bfloat16() for name, each in tensors.items()}


def test_a_model_rounded_to_bfloat16_is_the_shards(compared: Compare, tensors: Tensors) -> None:
    found = compared(rounded(tensors), tensors)
    assert not found.differences
    assert (found.tensors, found.values) == (len(tensors), sum(each.numel() for each in tensors.values()))
    assert (found.shard_dtypes, found.dtypes) == (("float32",), ("bfloat16",))


@pytest.mark.parametrize("mesh", [(1,), (3,), (4,), (2, 2)])
def test_rows_over_any_mesh_are_put_together(tensors: Tensors, tmp_path: Path, mesh: tuple[int, ...]) -> None:
    found = compare(save_model(tmp_path / "merged", tensors), save_fsdp(tmp_path / "actor", tensors, mesh))
    assert (found.tensors, found.differences) == (len(tensors), {})


@pytest.mark.parametrize("below", ["", "model"])
def test_megatrons_tensors_are_cut_and_named_as_transformers_has_them(
    tensors: Tensors, tmp_path: Path, below: str
) -> None:
    save_megatron(tmp_path / "actor" / below, tensors)
    found = compare(save_model(tmp_path / "merged", rounded(tensors)), tmp_path / "actor")
    assert (found.tensors, found.differences) == (len(tensors), {})


def changed(tensors: Tensors) -> Tensors:
    tensors["model.layers.1.self_attn.k_proj.weight"][2, 3] += 0.5
    return tensors


def test_one_value_that_differs_is_named(compared: Compare, tensors: Tensors, tmp_path: Path) -> None:
    merged = changed(rounded(tensors))
    expected = {"model.layers.1.self_attn.k_proj.weight": "1 of 32 values differ"}
    assert compared(merged, tensors).differences == expected
    save_megatron(tmp_path / "of-megatron", tensors)
    assert compare(tmp_path / "merged", tmp_path / "of-megatron").differences == expected


def test_zero_and_minus_zero_are_two_values_and_not_a_number_is_one(compared: Compare, tensors: Tensors) -> None:
    tensors[NORM] = torch.tensor([0.0] * 4 + [float("nan")] * 4)
    assert compared(rounded(tensors), tensors).differences == {}
    assert compared({**rounded(tensors), NORM: -rounded(tensors)[NORM].nan_to_num()}, tensors).differences == {
        NORM: "8 of 8 values differ"
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda each: torch.cat([each] * 2), "the shape is (16,) instead of (8,)"),
        (lambda each: each.half(), "the dtype is float16 instead of float32 or bfloat16"),
    ],
)
def test_another_shape_or_dtype_is_named(
    compared: Compare, tensors: Tensors, change: Callable[[Any], Any], said: str
) -> None:
    assert compared({**rounded(tensors), NORM: change(tensors[NORM])}, tensors).differences == {NORM: said}


def test_a_tensor_left_out_and_one_that_no_shard_has_are_named(compared: Compare, tensors: Tensors) -> None:
    merged = {**rounded(tensors), "odd.weight": torch.ones(2)}
    del merged[NORM]
    expected = {NORM: "missing in the model", "odd.weight": "missing in the shards"}
    assert compared(merged, tensors).differences == expected


def test_an_output_layer_may_be_left_out_if_it_is_the_input_layer(compared: Compare, tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING]
    merged = rounded(tensors)
    del merged[HEAD]
    found = compared(merged, tensors, tie_word_embeddings=True)
    assert (found.tied, found.differences) == ((HEAD,), {})
    assert list(compared(merged, tensors).differences) == [HEAD]
    merged[EMBEDDING] = merged[EMBEDDING] + 1
    assert list(compared(merged, tensors, tie_word_embeddings=True).differences) == [HEAD, EMBEDDING]


@pytest.mark.parametrize(
    ("text", "found"), [(None, "No such file or directory"), ("{", "Expecting property name"), ("[]", "mapping")]
)
def test_a_model_without_a_configuration_is_one_error(
    tensors: Tensors, tmp_path: Path, text: str | None, found: str
) -> None:
    merged = rounded(tensors)
    del merged[HEAD]
    model = save_model(tmp_path / "merged", merged)
    config = model / "config.json"
    config.unlink()
    if text is not None:
        config.write_text(text)
    with pytest.raises(SourceError, match=r"config\.json: expected the configuration of the merged model") as raised:
        compare(model, save_fsdp(tmp_path / "actor", tensors))
    assert found in str(raised.value)
    assert "merge again" in str(raised.value)


def test_a_prefix_that_transformers_moves_is_followed_by_the_values(compared: Compare, tensors: Tensors) -> None:
    moved = {name.replace("model.", "model.language_model.", 1): each for name, each in rounded(tensors).items()}
    found = compared(moved, tensors)
    assert found.renamed[NORM] == "model.language_model.norm.weight"
    assert (found.tensors, found.differences) == (len(tensors), {})
    moved["model.language_model.norm.weight"] += 1
    assert list(compared(moved, tensors).differences) == [NORM, "model.language_model.norm.weight"]


def test_an_adapter_is_compared_by_its_own_file(tmp_path: Path) -> None:
    base, adapter = "base_model.model.model.norm", "base_model.model.model.layers.0.mlp.up_proj.lora_A"
    shards = {f"{base}.base_layer.weight": torch.ones(4), f"{adapter}.default.weight": torch.ones(2, 4)}
    merged = save_model(tmp_path / "merged", {NORM: torch.ones(4)})
    save_model(merged / "lora_adapter", {f"{adapter}.weight": torch.ones(2, 4)})
    assert compare(merged, save_fsdp(tmp_path / "actor", shards)).differences == {}


def test_experts_are_taken_out_of_the_stack_of_layers_and_experts() -> None:
    gate, up = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    found = dict(
        parts_of("decoder.layers.mlp.experts.experts.linear_fc1.weight", torch.cat([gate, up], dim=2), CONFIG)
    )
    expected = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": half[layer, expert]
        for layer in range(2)
        for expert in range(3)
        for name, half in (("gate", gate), ("up", up))
    }
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("key", "kind", "name"),
    [
        ("decoder.layers.1.mlp.router.weight", "qwen2", "model.layers.1.mlp.gate.weight"),
        (
            "decoder.layers.1.mlp.shared_experts.linear_fc2.weight",
            "qwen2_moe",
            "model.layers.1.mlp.shared_expert.down_proj.weight",
        ),
    ],
)
def test_a_layer_by_its_number_is_not_taken_for_a_stack(key: str, kind: str, name: str) -> None:
    assert [each for each, _ in parts_of(key, torch.ones(3, 8), CONFIG | {"model_type": kind})] == [name]


def test_a_replica_that_differs_is_an_error(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_fsdp(tmp_path / "actor", tensors, (2, 2))
    save_shard(folder, changed(tensors), (2, 2), 3)
    with pytest.raises(SourceError, match=r"parts of model\.layers\.1\.self_attn\.k_proj\.weight that do not fit"):
        compare(save_model(tmp_path / "merged", rounded(tensors)), folder)


class Runs:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.mkdir, (self.path,))


def test_a_shard_that_would_run_a_program_is_not_read(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_fsdp(tmp_path / "actor", tensors)
    torch.save({"a": Runs(tmp_path / "ran")}, folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(SourceError) as raised:
        compare(save_model(tmp_path / "merged", rounded(tensors)), folder)
    assert "rank_1.pt: expected the shards" in str(raised.value)
    assert "found getattr" in str(raised.value)
    assert "weights_only" not in str(raised.value)
    assert not (tmp_path / "ran").exists()


def test_the_name_of_an_npu_is_read_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "model_world_size_1_rank_0.pt"
    torch.save({"device": torch.device("xla:0")}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"xla", b"npu"))
    # The allowed names are set for a whole process.
    read = f"""
from pathlib import Path
from verl_npu_workbench.comparison.fsdp_shards import _load
print(_load(Path({str(path)!r}))["device"])
"""
    done = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "npu:0"


@pytest.mark.parametrize("damage", ["a shard is missing", "a shard is cut short", "no model", "no checkpoint"])
def test_what_cannot_be_read_is_named(tensors: Tensors, tmp_path: Path, damage: str) -> None:
    merged, folder = save_model(tmp_path / "merged", rounded(tensors)), save_fsdp(tmp_path / "actor", tensors)
    shard, saved = folder / "model_world_size_2_rank_1.pt", merged / "model.safetensors"
    named = {"no model": saved, "no checkpoint": folder}.get(damage, shard)
    if damage == "a shard is missing":
        shard.unlink()
    elif damage == "no checkpoint":
        (folder / "fsdp_config.json").unlink()
    else:
        named.write_bytes(named.read_bytes()[:-10])
    with pytest.raises(SourceError) as raised:
        compare(merged, folder)
    assert named.name in str(raised.value)


def test_a_tensor_of_megatrons_that_nobody_knows_is_an_error(tensors: Tensors, tmp_path: Path) -> None:
    folder = save_megatron(tmp_path / "actor", tensors, **{"decoder.layers.mlp.odd.weight": torch.ones(2, 3)})
    with pytest.raises(SourceError, match=r"Megatron's tensor decoder\.layers\.mlp\.odd\.weight"):
        compare(save_model(tmp_path / "merged", rounded(tensors)), folder)
