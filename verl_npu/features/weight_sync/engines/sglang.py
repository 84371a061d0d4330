"""An SGLang engine in another process as the taker of weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .... import environment
from ....errors import EngineError
from ..settings import Check
from ..transport.tensors import Weight

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_PARALLEL = "infer_tp"


class SGLangEngine:
    """An SGLang engine in another process; its `server` is None on ranks without one, which need no mesh either.

    It has no forward here that could be closed: the error that ends the step keeps a half-loaded engine from use.
    """

    def __init__(self, server: Any, mesh: Callable[[], DeviceMesh]) -> None:
        # Here and not in the first load: a failure must come before the weights move.
        from sglang.srt.weight_sync.utils import update_weights

        self._update_weights = update_weights
        self._server = server
        self._mesh = mesh
        try:
            self._loop = asyncio.get_event_loop()
        except RuntimeError:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)

    def load(self, weights: Sequence[Weight]) -> None:
        """Hand copies over: the engine reads them after this call has returned."""
        if self._server is not None:
            copies = [(name, tensor.clone()) for name, tensor in weights]
            self._loop.run_until_complete(self._update(self._server, copies))

    def open(self) -> None:
        """Nothing was closed."""

    def expect(self, weights: Sequence[Weight]) -> None:
        """Raise EngineError: SGLang's parameters cannot be read from here."""
        self.prove()

    def prove(self) -> str:
        """Raise EngineError, as `expect` does."""
        refuse_proof()

    async def _update(self, server: Any, weights: list[Weight]) -> None:
        mesh = self._mesh()
        await self._update_weights(engine=server, params_batch=weights, device_mesh_key=_PARALLEL, device_mesh=mesh)
        if mesh[_PARALLEL].get_local_rank() == 0:
            await server.flush_cache()


def refuse_proof() -> NoReturn:
    """Raise EngineError: a proof was asked for of an engine that has none."""
    check = environment.WEIGHT_SYNC_CHECK.name
    raise EngineError(
        subject=f"{check}={Check.ENGINE.value}",
        expected="an engine whose parameters can be read from its worker",
        found="an SGLang engine, which is another process",
        fix=f"use {check}={Check.CHECKSUMS.value}",
    )
