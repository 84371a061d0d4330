"""Checkpoints as trainers leave them, made in this process: a rank at a time, with collectives that do nothing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "vocab_size": 10,
}
Tensors = dict[str, Any]


def model(config: dict[str, Any] = CONFIG) -> Tensors:
    """Return a Qwen2 with random values, by the names that transformers gives its tensors."""
    hidden, middle, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    size = hidden // config["num_attention_heads"]
    keys = size * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.mlp.gate_proj.weight": (middle, hidden),
            f"{at}.mlp.up_proj.weight": (middle, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, middle),
        }
        for letter, rows in (("q", hidden), ("k", keys), ("v", keys)):
            shapes[f"{at}.self_attn.{letter}_proj.weight"] = (rows, hidden)
            shapes[f"{at}.self_attn.{letter}_proj.bias"] = (rows,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save_model(folder: Path, tensors: Tensors, config: dict[str, Any] = CONFIG) -> Path:
    """Write a merged model as upstream's merger does; each tensor keeps its dtype."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """Be one of several ranks, of which no other one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def save_shard(folder: Path, tensors: Tensors, mesh: Sequence[int], rank: int) -> Path:
    """Write the shard that a rank of FSDP saves: rows of each tensor, replicated over the first of two dimensions."""
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

    world = torch.Size(mesh).numel()
    parts, place = mesh[-1], rank % mesh[-1]
    placements = [*([Replicate()] * (len(mesh) - 1)), Shard(0)]
    found = {}
    with rank_of(rank, world):
        ranks = torch.arange(world).reshape(tuple(mesh))
        device_mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("ddp", "fsdp")[-len(mesh) :])
        for name, tensor in tensors.items():
            # FSDP2 gives the last ranks fewer rows, or none.
            chunks = list(tensor.chunk(parts))
            local = chunks[place] if place < len(chunks) else tensor[:0]
            found[name] = DTensor.from_local(
                local.clone(), device_mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
            )
        path = folder / f"model_world_size_{world}_rank_{rank}.pt"
        torch.save(found, path)
    return path


def save_fsdp(folder: Path, tensors: Tensors, mesh: Sequence[int] = (2,)) -> Path:
    """Write an FSDP checkpoint."""
    world = torch.Size(mesh).numel()
    folder.mkdir(parents=True)
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    for rank in range(world):
        save_shard(folder, tensors, mesh, rank)
    return folder


def save_megatron(folder: Path, tensors: Tensors, **more: Any) -> Path:
    """Write a Megatron checkpoint, in the format of torch.distributed.checkpoint."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint import save as write

    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface" / "config.json").write_text(json.dumps(CONFIG))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there are no process groups
        write(as_megatron(tensors) | more, storage_writer=FileSystemWriter(folder / "dist_ckpt"), no_dist=True)
    return folder


def as_megatron(tensors: Tensors, config: dict[str, Any] = CONFIG) -> Tensors:
    """Return a model by Megatron's names: layers stacked, heads by their groups, gate above up."""
    groups, queries = config["num_key_value_heads"], config["num_attention_heads"] // config["num_key_value_heads"]
    size = config["hidden_size"] // config["num_attention_heads"]

    def fused(layer: int, kind: str) -> Any:
        q, k, v = (tensors[f"model.layers.{layer}.self_attn.{letter}_proj.{kind}"] for letter in "qkv")
        rows = []
        for group in range(groups):
            rows.append(q[group * queries * size : (group + 1) * queries * size])
            rows.append(k[group * size : (group + 1) * size])
            rows.append(v[group * size : (group + 1) * size])
        return torch.cat(rows)

    def stacked(name: str) -> Any:
        return torch.stack([tensors[f"model.layers.{layer}.{name}"] for layer in range(config["num_hidden_layers"])])

    layers = range(config["num_hidden_layers"])
    padded = torch.cat([tensors["model.embed_tokens.weight"], torch.zeros(6, config["hidden_size"])])
    return {
        "embedding.word_embeddings.weight": padded,
        "decoder.layers.self_attention.linear_qkv.weight": torch.stack([fused(layer, "weight") for layer in layers]),
        "decoder.layers.self_attention.linear_qkv.bias": torch.stack([fused(layer, "bias") for layer in layers]),
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": stacked("input_layernorm.weight"),
        "decoder.layers.self_attention.linear_proj.weight": stacked("self_attn.o_proj.weight"),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": stacked("post_attention_layernorm.weight"),
        "decoder.layers.mlp.linear_fc1.weight": torch.cat(
            [stacked("mlp.gate_proj.weight"), stacked("mlp.up_proj.weight")], dim=1
        ),
        "decoder.layers.mlp.linear_fc2.weight": stacked("mlp.down_proj.weight"),
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
        "output_layer.weight": tensors["lm_head.weight"],
        "optimizer.state.exp_avg.decoder.final_layernorm.weight": tensors["model.norm.weight"],
    }
