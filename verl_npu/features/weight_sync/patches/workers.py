"""A weight sync for verl's workers: trainers with FSDP or Megatron, and rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .... import reporting
from ....errors import WeightSyncError
from ...configuration import Section
from ..engines.sglang import SGLangEngine
from ..engines.vllm import VLLMEngine, runner_in
from ..settings import Settings
from ..transport.group import Group, find
from ..transport.plan import find_tied
from ..transport.sync import Engine, Outcome, follow, preparing, receive, send
from ..transport.tensors import Entry, Metadata, Weight

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


class Rollout(Protocol):
    """A verl rollout. With vLLM, it has an `inference_engine`; with SGLang, it has an `_engine`."""

    inference_engine: Any
    _engine: Any


class Worker(Protocol):
    """A worker in verl's recipes, which is either a trainer or a rollout. A trainer has only the attributes for
    trainers, and a rollout only those for rollouts."""

    config: Section
    _is_actor: bool
    _is_offload_param: bool
    _weights_info: list[Entry]
    actor_module_fsdp: torch.nn.Module
    actor_module: Sequence[torch.nn.Module]
    rollout: Rollout
    rollout_device_mesh: DeviceMesh

    def _get_actor_params(self) -> dict[str, torch.Tensor]: ...

    def _get_actor_params_generator(self) -> Iterable[Weight]: ...


@dataclass(frozen=True, slots=True)
class _Offer:
    """A trainer's contribution to a sync."""

    metadata: Metadata
    weights: Iterator[Weight]
    tied: Mapping[str, str] = field(default_factory=dict)


def sync_fsdp(worker: Worker, name: str) -> None:
    """Sync an FSDP worker, which may be a trainer or a rollout, in the group `name`. Raises WeightSyncError if the
    sync fails."""

    def offer() -> _Offer:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.fsdp_utils import load_fsdp_model_to_gpu

            load_fsdp_model_to_gpu(worker.actor_module_fsdp)
        parameters = worker._get_actor_params()
        # The current parameters, not worker._weights_info, because the rollouts compare the two.
        metadata = find(name).history.metadata_of(
            [(key, value.size(), value.dtype) for key, value in parameters.items()]
        )
        return _Offer(metadata, _gathered(parameters.items()), find_tied(parameters.items()))

    def offload() -> None:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.fsdp_utils import offload_fsdp_model_to_cpu

            offload_fsdp_model_to_cpu(worker.actor_module_fsdp)

    _sync(worker, name, offer, offload)


def sync_megatron(worker: Worker, name: str, bucket_bytes: int | None = None) -> None:
    """Sync a Megatron worker in the group `name`, as `sync_fsdp` does. Weights are converted one at a time, as they
    are consumed."""

    def offer() -> _Offer:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.megatron_utils import load_megatron_model_to_gpu

            load_megatron_model_to_gpu(worker.actor_module)
        metadata = find(name).history.metadata_of(worker._weights_info)
        return _Offer(metadata, _converted(metadata, worker._get_actor_params_generator()))

    def offload() -> None:
        if getattr(worker, "_is_offload_param", False):
            from verl.utils.megatron_utils import offload_megatron_model_to_cpu

            offload_megatron_model_to_cpu(worker.actor_module)

    _sync(worker, name, offer, offload, bucket_bytes)


def _sync(
    worker: Worker,
    name: str,
    offer: Callable[[], _Offer],
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
            offered = offer()
        try:
            if group.rank == 0:
                outcome = send(group, offered.metadata, offered.weights, settings, offered.tied)
            else:
                outcome = follow(group, offered.metadata, offered.weights)
        finally:
            offload()
    else:
        with preparing(group):
            engine = _engine(worker)
            expected = group.history.metadata_of(worker._weights_info)
        outcome = receive(group, expected, engine)
    _report(group, outcome)
    get_torch_device().empty_cache()


def _report(group: Group, outcome: Outcome) -> None:
    """Report the first sync. If the user requested a check, report every sync."""
    seen = outcome.seen
    if outcome.number == 1 or seen.digest is not None:
        checked = "" if seen.digest is None else f", sha256 {seen.digest[:16]}"
        held = f", {seen.held}" if seen.held else ""
        reporting.report(
            f"weight sync {outcome.number} of {group.name}: {group.describe(group.rank)}: {outcome.tensors} tensors, "
            f"{outcome.nbytes / 1e6:.1f} MB in {outcome.seconds:.3f} s{checked}{held}"
        )


def _gathered(parameters: Iterable[Weight]) -> Iterator[Weight]:
    """Yield the parameters, and gather each sharded tensor. All trainers must do this together, in the same order."""
    for name, value in parameters:
        yield name, value.full_tensor() if hasattr(value, "full_tensor") else value


def _converted(metadata: Metadata, weights: Iterable[Weight]) -> Iterator[Weight]:
    for spec, (name, weight) in zip(metadata, weights, strict=True):
        # Megatron keeps this weight in float32 after the optimizer's first step, and upstream accepts that.
        if name.endswith("e_score_correction_bias"):
            weight = weight.to(spec.torch_dtype)
        yield name, weight


def _engine(worker: Worker) -> Engine:
    name = worker.config.rollout.name
    if name == "vllm":
        from verl.utils.vllm.patch import patch_vllm_moe_model_weight_loader

        runner = runner_in(worker.rollout.inference_engine)
        patch_vllm_moe_model_weight_loader(runner.model)
        return VLLMEngine(runner)
    if name == "sglang":
        return SGLangEngine(worker.rollout._engine, lambda: worker.rollout_device_mesh)
    raise WeightSyncError(
        subject=f"actor_rollout_ref.rollout.name={name}",
        expected="vllm or sglang for a rollout that is separate from its trainer",
        found=repr(name),
        fix="set actor_rollout_ref.rollout.name to vllm or sglang",
    )
