"""Layers whose weights are read without a call of the layer, under real FSDP2 on two processes with different data."""

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
    """Read the weights without calling the layer, as upstream's forward passes do."""
    return (model.body(x) @ model.lm_head.weight.T).tanh().sum()


def upstreams_later(model, x):  # type: ignore[no-untyped-def]
    """Gather the weights as upstream does from 2026-07 on."""
    weight = model.lm_head.weight
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return (model.body(x) @ weight.T).tanh().sum()


def ours(model, x):  # type: ignore[no-untyped-def]
    return with_output_layer(upstreams, model, x)


def ours_later(model, x):  # type: ignore[no-untyped-def]
    return with_output_layer(upstreams_later, model, x)


FORWARDS: dict[str, Forward] = {each.__name__: each for each in (upstreams, upstreams_later, ours, ours_later)}


def worker(rank: int, port: int, folder: str) -> None:
    """Train a step with each forward pass; rank 0 writes what was sharded, and whether the gradients are right."""
    import torch

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {name: trained(rank, forward) for name, forward in FORWARDS.items()}
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
    _end()


def trained(rank: int, forward: Forward) -> dict[str, object]:
    """Return the outcome of a step on both ranks; correct gradients equal those of one process with all data."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.lm_head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 6, bias=False)

        def forward(self, x: torch.Tensor) -> object:
            return forward(self, x)

    data = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    alone, sharded = Whole(), Whole()
    (sum(upstreams(alone, each) for each in data) / 2).backward()
    mesh = init_device_mesh("cpu", (2,))
    for module in (sharded.body, sharded.lm_head, sharded):
        fully_shard(module, mesh=mesh)
    try:
        with torch.no_grad():
            sharded(data[rank])
        after_inference = hasattr(sharded.lm_head.weight, "full_tensor")
        sharded(data[rank]).backward()
    except RuntimeError as error:
        return {"error": str(error)}
    gradient = sharded.lm_head.weight.grad.full_tensor()
    return {
        "sharded after inference": after_inference,
        "sharded after training": hasattr(sharded.lm_head.weight, "full_tensor"),
        "gradient": torch.allclose(gradient, alone.lm_head.weight.grad),
    }


def _end() -> None:
    """End this process at once: PyTorch keeps the group of a DTensor, and may abort when it frees it at exit."""
    os._exit(0)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Return the outcome of a step on two processes, by the name of the forward pass."""
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    folder = tmp_path_factory.mktemp("steps")
    multiprocessing.spawn(worker, (free_port(), str(folder)), nprocs=2)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("forward", [ours, ours_later])
def test_the_gradients_are_those_of_one_process_with_all_data(forward: Forward, steps) -> None:
    whole = {"sharded after inference": True, "sharded after training": True, "gradient": True}
    assert steps[forward.__name__] == whole


def test_without_it_a_layer_that_is_not_called_is_sharded(steps) -> None:
    assert "mixed torch.Tensor and DTensor" in str(steps["upstreams"]["error"])


def test_without_it_what_upstream_gathers_later_loses_gradients(steps) -> None:
    assert steps["upstreams_later"]["gradient"] is False


def images(model, x):  # type: ignore[no-untyped-def]
    """Make indices on the table's device, as transformers does for the positions of images."""
    import torch

    index = torch.zeros(2, dtype=torch.long, device=model.pos_embed.weight.device)
    found.append(type(model.pos_embed.weight).__name__)
    return model.pos_embed(index).sum() * x.sum()


found: list[str] = []


def vision_worker(_: int, patched: bool, folder: str) -> None:
    """Compute positions with and without gradients; write the table's type, and whether it is sharded again."""
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
    # In a process of its own: a process that another test forks from a thread later would free the group that PyTorch
    # keeps, and end in a segmentation fault.
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    multiprocessing.spawn(vision_worker, (patched, str(tmp_path)), nprocs=1)
    assert json.loads((tmp_path / "found.json").read_text()) == [[table] * 2, True]
