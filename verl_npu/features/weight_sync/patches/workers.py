"""One sync as verl's workers take part in it: trainers over FSDP or Megatron, rollouts with vLLM or SGLang."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .... import reporting
from ..engine import SGLangEngine, VLLMEngine
from ..errors import EngineError
from ..settings import Settings
from ..transport.bucket import find_tied
from ..transport.group import Group, find
from ..transport.metadata import Metadata
from ..transport.sync import Engine, Outcome, follow, preparing, receive, send

__all__ = ["sync_fsdp", "sync_megatron"]

Drawn = Iterator[tuple[str, Any]]


def sync_fsdp(worker: Any, name: str) -> None:
    """Sync a worker over FSDP, as trainer or as rollout, in the group of that name."""

    def trainer() -> tuple[Metadata, Drawn, Mapping[str, str]]:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.fsdp_utils import load_fsdp_model_to_gpu

            load_fsdp_model_to_gpu(worker.actor_module_fsdp)
        parameters = worker._get_actor_params()
        # What there is now, and not what there was when the list was made: the rollouts hold that against it.
        metadata = _metadata(find(name), [(key, value.size(), value.dtype) for key, value in parameters.items()])
        return metadata, _whole(parameters.items()), find_tied(parameters.items())

    def offload() -> None:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.fsdp_utils import offload_fsdp_model_to_cpu

            offload_fsdp_model_to_cpu(worker.actor_module_fsdp)

    _sync(worker, name, trainer, offload)


def sync_megatron(worker: Any, name: str, bucket_bytes: int | None = None) -> None:
    """Sync a worker over Megatron, whose weights are converted one by one as they are drawn."""

    def trainer() -> tuple[Metadata, Drawn, Mapping[str, str]]:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.megatron_utils import load_megatron_model_to_gpu

            load_megatron_model_to_gpu(worker.actor_module)
        metadata = _metadata(find(name), worker._weights_info)
        return metadata, _converted(metadata, worker._get_actor_params_generator()), {}

    def offload() -> None:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.megatron_utils import offload_megatron_model_to_cpu

            offload_megatron_model_to_cpu(worker.actor_module)

    _sync(worker, name, trainer, offload, bucket_bytes)


def _sync(
    worker: Any,
    name: str,
    trainer: Callable[[], tuple[Metadata, Drawn, Mapping[str, str]]],
    offload: Callable[[], None],
    bucket_bytes: int | None = None,
) -> None:
    from verl.utils.device import get_torch_device

    group = find(name)
    if worker._is_actor:
        with preparing(group):
            settings = Settings.from_environment()
            if bucket_bytes is not None:
                settings = dataclasses.replace(settings, bucket_bytes=bucket_bytes)
            metadata, drawn, tied = trainer()
        try:
            outcome = (
                send(group, metadata, drawn, settings, tied) if group.rank == 0 else follow(group, metadata, drawn)
            )
        finally:
            offload()
    else:
        with preparing(group):
            engine = _engine(worker)
            expected = _metadata(group, worker._weights_info)
        outcome = receive(group, expected, engine)
    _tell(group, outcome)
    get_torch_device().empty_cache()


def _metadata(group: Group, entries: list[Any]) -> Metadata:
    """Make it, or give the last one where nothing has changed: its digest is most of the work of a small sync."""
    known = group.announced
    if known is None or known[0] != entries:
        known = group.announced = (list(entries), Metadata.of(entries))
    return known[1]  # type: ignore[no-any-return]


def _tell(group: Group, outcome: Outcome) -> None:
    """Say it once, and each time where the user looks closely."""
    if outcome.number == 1 or outcome.digest is not None:
        checked = "" if outcome.digest is None else f", sha256 {outcome.digest[:16]}"
        held = ", the engine holds them bit for bit" if outcome.digest and group.rank else ""
        reporting.report(
            f"weight sync {outcome.number} of {group.name}: {group.describe(group.rank)}: {outcome.tensors} tensors, "
            f"{outcome.nbytes / 1e6:.1f} MB in {outcome.seconds:.3f} s{checked}{held}"
        )


def _whole(parameters: Iterable[tuple[str, Any]]) -> Drawn:
    """Gather each sharded tensor: all trainers do it together, in this order."""
    for name, value in parameters:
        yield name, value.full_tensor() if hasattr(value, "full_tensor") else value


def _converted(metadata: Metadata, weights: Iterable[tuple[str, Any]]) -> Drawn:
    import torch

    for spec, (name, weight) in zip(metadata, weights, strict=True):
        # Megatron keeps this one in float32 once the optimizer has seen it, and upstream lets that pass.
        if name.endswith("e_score_correction_bias"):
            weight = weight.to(getattr(torch, spec.dtype))
        yield name, weight


def _engine(worker: Any) -> Engine:
    name = worker.config.rollout.name
    if name == "vllm":
        from verl.utils.vllm.patch import patch_vllm_moe_model_weight_loader

        model = _vllm_model(worker.rollout.inference_engine)
        patch_vllm_moe_model_weight_loader(model)
        return VLLMEngine(model)
    if name == "sglang":
        return SGLangEngine(worker.rollout._engine, _sglang_update(worker))
    raise EngineError(f"rollout.name={name}: expected vllm or sglang for a rollout apart from its trainer")


def _vllm_model(engine: Any) -> Any:
    """The model of this process's vLLM worker: inside an LLM (up to 0.10), or the worker of an async server."""
    if hasattr(engine, "llm_engine"):
        return engine.llm_engine.model_executor.driver_worker.worker.model_runner.model
    return engine.worker.model_runner.model


def _sglang_update(worker: Any) -> Callable[[Any, list[tuple[str, Any]]], None]:
    import asyncio

    from sglang.srt.weight_sync.utils import update_weights

    async def update(engine: Any, weights: list[tuple[str, Any]]) -> None:
        mesh = worker.rollout_device_mesh
        await update_weights(engine=engine, params_batch=weights, device_mesh_key="infer_tp", device_mesh=mesh)
        if mesh["infer_tp"].get_local_rank() == 0:
            await engine.flush_cache()

    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return lambda engine, weights: loop.run_until_complete(update(engine, weights))
