"""An SGLang engine in another process: it receives copies, and cannot be read back."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import WeightSyncError
from verl_npu.features.weight_sync.engines.sglang import SGLangEngine


class Server:
    """A server that keeps the tensors it receives until they are read, after the call has returned."""

    def __init__(self) -> None:
        self.given: list[tuple[str, torch.Tensor]] = []
        self.flushes = 0

    async def flush_cache(self) -> None:
        self.flushes += 1


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def update_weights(engine: Server, params_batch: Any, device_mesh_key: str, device_mesh: Any) -> None:
        engine.given += params_batch

    for name in ("sglang", "sglang.srt", "sglang.srt.weight_sync", "sglang.srt.weight_sync.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["sglang.srt.weight_sync.utils"].update_weights = update_weights  # type: ignore[attr-defined]
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


def mesh(rank: int) -> dict[str, Any]:
    return {"infer_tp": SimpleNamespace(get_local_rank=lambda: rank)}


@pytest.mark.parametrize(("rank", "flushes"), [(0, 1), (1, 0)])
def test_it_is_given_copies_and_the_first_rank_has_it_forget(rank: int, flushes: int) -> None:
    server, view = Server(), torch.ones(3)
    SGLangEngine(server, lambda: mesh(rank)).load([("weight", view)])
    view.zero_()
    assert [(name, tensor.tolist()) for name, tensor in server.given] == [("weight", [1.0, 1.0, 1.0])]
    assert server.flushes == flushes


def test_a_rank_without_a_server_needs_no_mesh() -> None:
    SGLangEngine(None, lambda: pytest.fail("there is no mesh")).load([("weight", torch.ones(3))])


def test_it_cannot_be_read_back() -> None:
    with pytest.raises(WeightSyncError, match="use VERL_NPU_WEIGHT_SYNC_CHECK=checksums"):
        SGLangEngine(None, lambda: mesh(0)).expect([("weight", torch.ones(3))])
