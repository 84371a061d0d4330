"""A receiver of weights: an SGLang engine in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .... import environment
from ....errors import WeightSyncError
from ..settings import Check
from ..transport.tensors import Weight

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_PARALLEL = "infer_tp"


class SGLangEngine:
    """An SGLang engine in another process. On ranks without a server, `server` is None, and no mesh is needed.

    This process cannot stop the engine from running batches. If a load fails halfway, the error ends the training
    step, so the engine is not used with a mix of old and new weights.
    """

    def __init__(self, server: Any, mesh: Callable[[], DeviceMesh]) -> None:
        # Imported here and not in the first load, so that a failure occurs before weights are transferred.
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
        """Pass copies of the weights to the engine. The engine reads them after this call has returned."""
        if self._server is not None:
            copies = [(name, tensor.clone()) for name, tensor in weights]
            self._loop.run_until_complete(self._update(self._server, copies))

    def open(self) -> None:
        """Do nothing, because `load` does not stop the engine from running batches."""

    def expect(self, weights: Sequence[Weight]) -> None:
        """Raise WeightSyncError in every case, because this process cannot read SGLang's parameters."""
        self.prove()

    def prove(self) -> str:
        """Raise WeightSyncError in every case, because this process cannot read SGLang's parameters."""
        refuse_proof()

    async def _update(self, server: Any, weights: list[Weight]) -> None:
        mesh = self._mesh()
        await self._update_weights(engine=server, params_batch=weights, device_mesh_key=_PARALLEL, device_mesh=mesh)
        if mesh[_PARALLEL].get_local_rank() == 0:
            await server.flush_cache()


def refuse_proof() -> NoReturn:
    """Raise WeightSyncError, because the user requested a proof of the engine's weights and SGLang engines do not
    support such a proof."""
    check = environment.WEIGHT_SYNC_CHECK.name
    raise WeightSyncError(
        subject=f"{check}={Check.ENGINE.value}",
        expected="an engine whose parameters can be read from its worker",
        found="an SGLang engine, which runs in another process",
        fix=f"use {check}={Check.CHECKSUMS.value}",
    )
