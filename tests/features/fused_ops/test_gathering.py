"""Layers that are read without being called, under real FSDP2 on two processes with different data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from virtual_ascend.testing import free_port

from verl_npu.features.fused_ops.fsdp2 import with_output_layer, with_positions

Forward = Callable[..., object]


def test_a_model_without_fsdp2_is_left_alone() -> None:
    pytest.importorskip("torch")
    model = SimpleNamespace(lm_head=object())
    assert with_output_layer(lambda *args, **kwargs: (args, kwargs), model, 1, labels=2) == ((model, 1), {"labels": 2})


def upstreams(model, x):  # type: ignore[no-untyped-def]
    """Reads the weights without calling the layer, as upstream's forward passes do."""
    return (model.body(x) @ model.lm_head.weight.T).tanh().sum()


def upstreams_later(model, x):  # type: ignore[no-untyped-def]
    """Gathers them as upstream does from 2026-07 on."""
    weight = model.lm_head.weight
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return (model.body(x) @ weight.T).tanh().sum()


def ours(model, x):  # type: ignore[no-untyped-def]
    return with_output_layer(upstreams, model, x)


def ours_later(model, x):  # type: ignore[no-untyped-def]
    return with_output_layer(upstreams_later, model, x)


def worker(rank: int, port: int, forward: Forward, folder: str) -> None:
    """Train a step on each rank; rank 0 writes how far the gradients are from those of one process with all data."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def model() -> torch.nn.ModuleDict:
        torch.manual_seed(0)
        return torch.nn.ModuleDict({"body": torch.nn.Linear(4, 4), "lm_head": torch.nn.Linear(4, 6, bias=False)})

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.lm_head = model().values()

        def forward(self, x: torch.Tensor) -> object:
            return forward(self, x)

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    data = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    alone, sharded = Whole(), Whole()
    (sum(upstreams(alone, each) for each in data) / 2).backward()
    mesh = init_device_mesh("cpu", (2,))
    for module in (sharded.body, sharded.lm_head, sharded):
        fully_shard(module, mesh=mesh)
    found: dict[str, object] = {}
    try:
        with torch.no_grad():
            sharded(data[rank])
        found["sharded after inference"] = hasattr(sharded.lm_head.weight, "full_tensor")
        sharded(data[rank]).backward()
        gradient = sharded.lm_head.weight.grad.full_tensor()
        found["sharded after training"] = hasattr(sharded.lm_head.weight, "full_tensor")
        found["gradient"] = torch.allclose(gradient, alone.lm_head.weight.grad)
    except RuntimeError as error:
        found["error"] = str(error)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
    _end()


def _end() -> None:
    """End this process at once: PyTorch keeps the group of a DTensor, and may abort as it frees it at the end."""
    os._exit(0)


def on_two_processes(forward: Forward, folder: Path) -> dict[str, object]:
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    multiprocessing.spawn(worker, (free_port(), forward, str(folder)), nprocs=2)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("forward", [ours, ours_later])
def test_the_gradients_are_those_of_one_process_with_all_data(forward: Forward, tmp_path: Path) -> None:
    whole = {"sharded after inference": True, "sharded after training": True, "gradient": True}
    assert on_two_processes(forward, tmp_path) == whole


def test_without_it_a_layer_that_is_not_called_is_sharded(tmp_path: Path) -> None:
    assert "mixed torch.Tensor and DTensor" in str(on_two_processes(upstreams, tmp_path)["error"])


def test_without_it_what_upstream_gathers_later_loses_gradients(tmp_path: Path) -> None:
    assert on_two_processes(upstreams_later, tmp_path)["gradient"] is False


def images(model, x):  # type: ignore[no-untyped-def]
    """Makes indices where the table is, as transformers does for the positions of images."""
    import torch

    index = torch.zeros(2, dtype=torch.long, device=model.pos_embed.weight.device)
    found.append(type(model.pos_embed.weight).__name__)
    return model.pos_embed(index).sum() * x.sum()


found: list[str] = []


def vision_worker(_: int, patched: bool, folder: str) -> None:
    """Compute positions with and without gradients; writes what the table was, and whether it is sharded again."""
    import torch
    from torch.distributed.fsdp import fully_shard

    class Vision(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = torch.nn.Embedding(4, 4)

        def forward(self, x: torch.Tensor) -> object:
            return with_positions(images, self, x) if patched else images(self, x)

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = Vision()
    fully_shard(model.pos_embed)
    fully_shard(model)
    model(torch.ones(2)).backward()
    with torch.no_grad():
        model(torch.ones(2))
    seen = [name.removeprefix("Parameter") or "Tensor" for name in found]
    (Path(folder) / "found.json").write_text(json.dumps([seen, hasattr(model.pos_embed.weight, "full_tensor")]))
    torch.distributed.destroy_process_group()
    _end()


@pytest.mark.parametrize(("patched", "table"), [(False, "DTensor"), (True, "Tensor")])
def test_a_table_is_gathered_before_it_is_asked_for_its_device(patched: bool, table: str, tmp_path: Path) -> None:
    # In a process of its own: one that another test forks from a thread later would free the group that PyTorch keeps,
    # and end in a segmentation fault.
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    multiprocessing.spawn(vision_worker, (patched, str(tmp_path)), nprocs=1)
    assert json.loads((tmp_path / "found.json").read_text()) == [[table] * 2, True]
