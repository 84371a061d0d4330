"""The engine behind verl's server contract (from ccd7d934 on): a server actor, its replica, and the worker's side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypedDict

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput

from ...ascend.variables import VISIBLE_DEVICES
from ...errors import RolloutError
from .engine import ModelSettings, RolloutSettings, Sampling, check_layout, engine_of, sampling

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["VirtualReplica", "VirtualServer", "VirtualServerAdapter"]

# Requests that come within this time are answered as one batch.
GATHER_SECONDS = 0.02
BUCKET_BYTES = 256 << 20


def _name(replica_rank: int) -> str:
    return f"virtual_server_{replica_rank}"


class _Asked(TypedDict, total=False):
    """The sampling parameters of a request, as vLLM names them."""

    max_tokens: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    logprobs: int


@dataclass(slots=True)
class _Request:
    prompt: list[int]
    length: int
    sampling: Sampling
    with_log_probs: bool
    answer: asyncio.Future[TokenOutput]

    def batch_key(self) -> str:
        return repr((self.length, self.sampling, self.with_log_probs))


class VirtualServer:
    """A Ray actor with a whole model; what is asked of it at the same time is generated as one batch."""

    def __init__(
        self, config: RolloutSettings, model_config: ModelSettings, npu: str, wakes: list[ActorHandle]
    ) -> None:
        self._config = omega_conf_to_dataclass(config)
        self._model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        check_layout(self._config, self._model_config)
        # It asked Ray for no NPU and sees none: it uses that of its worker.
        os.environ[VISIBLE_DEVICES] = npu
        tokenizer = self._model_config.tokenizer
        self._pad: int = tokenizer.pad_token_id
        self._eos: int | None = None if self._config.ignore_eos else tokenizer.eos_token_id
        self._engine = engine_of(self._config, self._model_config, announce=npu == "0")
        self._wakes = wakes
        self._global_steps: int | None = None
        self._waiting: list[_Request] = []
        # The model is one: batches, and hand-overs of weights, take turns.
        self._turn = asyncio.Lock()

    async def generate(
        self, prompt_ids: Iterable[int], sampling_params: _Asked, request_id: str, **others: object
    ) -> TokenOutput:
        """Answer one prompt. Raises RolloutError for images, video or sound: the engine takes tokens only."""
        given = sorted(name for name, value in others.items() if name.endswith("_data") and value)
        if given:
            raise RolloutError(
                subject="a prompt for the virtual rollout engine",
                expected="tokens only",
                found=", ".join(given),
                fix="use a model and data of text alone",
            )
        limit = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        request = _Request(
            prompt=list(prompt_ids),
            length=int(self._config.response_length if limit is None else limit),
            sampling=sampling(
                True,
                sampling_params.get("temperature", 1.0),
                sampling_params.get("top_p", 1.0),
                sampling_params.get("top_k", -1),
            ),
            with_log_probs=bool(sampling_params.get("logprobs")),
            answer=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(request)
        if len(self._waiting) == 1:
            await asyncio.sleep(GATHER_SECONDS)
            await self._answer()
        return await request.answer

    async def _answer(self) -> None:
        async with self._turn:
            waiting, self._waiting = self._waiting, []
            for key in dict.fromkeys(request.batch_key() for request in waiting):
                batch = [request for request in waiting if request.batch_key() == key]
                try:
                    outputs = await asyncio.to_thread(self._generate, batch)
                except Exception as error:
                    # Whoever asked gets it; a batch that is never answered would be a job that hangs.
                    for request in batch:
                        request.answer.set_exception(error)
                    continue
                for request, output in zip(batch, outputs, strict=True):
                    request.answer.set_result(output)

    def _generate(self, batch: list[_Request]) -> list[TokenOutput]:
        torch.npu.set_device(self._engine.device)
        longest = max(len(request.prompt) for request in batch)
        padding = [longest - len(request.prompt) for request in batch]
        rows = [[self._pad] * pad + request.prompt for pad, request in zip(padding, batch, strict=True)]
        masks = [[0] * pad + [1] * len(request.prompt) for pad, request in zip(padding, batch, strict=True)]
        answers = self._engine.generate(
            torch.tensor(rows, device=self._engine.device),
            torch.tensor(masks, device=self._engine.device),
            batch[0].length,
            self._eos,
            batch[0].sampling,
            batch[0].with_log_probs,
        )
        log_probs = None if answers.log_probs is None else answers.log_probs.tolist()
        outputs = []
        for index, row in enumerate(answers.responses.tolist()):
            count = row.index(self._eos) + 1 if self._eos in row else len(row)
            outputs.append(
                TokenOutput(
                    token_ids=row[:count],
                    log_probs=None if log_probs is None else log_probs[index][:count],
                    stop_reason="completed",
                    extra_fields={"global_steps": self._global_steps},
                )
            )
        return outputs

    async def take_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        """Copy a part of the trainer's weights; raises RolloutError if they do not fit the model."""
        async with self._turn:
            self._engine.take(weights)

    async def complete_weights(self, global_steps: int | None) -> None:
        """End a hand-over; raises RolloutError if a weight never arrived."""
        async with self._turn:
            self._engine.complete()
            self._global_steps = global_steps

    async def wake_up(self) -> None:
        """At revisions where the server asks for the weights (ccd7d934), have the workers hand them over."""
        await asyncio.gather(*[worker.wake_up.remote() for worker in self._wakes])

    async def sleep(self) -> None:
        """Give up the weights; at revisions where the server says so, the workers go back to training."""
        self._engine.release()
        await asyncio.gather(*[worker.sleep.remote() for worker in self._wakes])

    async def clear_kv_cache(self) -> None:
        """Nothing is kept between requests."""

    async def release_kv_cache(self) -> None:
        """Nothing is kept between requests."""

    async def resume_kv_cache(self) -> None:
        """Nothing is kept between requests."""


class VirtualReplica(RolloutReplica):  # type: ignore[misc]  # verl carries no types
    """One server for one NPU, which it shares with the worker that trains on it."""

    async def launch_servers(self) -> None:
        """Start the server beside its worker. Raises RolloutError for a mode without one."""
        if self.rollout_mode is not RolloutMode.HYBRID:
            raise self._alone()
        (worker,) = self.workers
        node, npu = await worker.__ray_call__.remote(_place)
        # At ccd7d934 the server tells its workers when to hand over weights; later the trainer does.
        wakes = [worker] if hasattr(worker, "wake_up") else []
        server = (
            ray.remote(VirtualServer)
            .options(
                name=_name(self.replica_rank),
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
                max_concurrency=1000,
            )
            .remote(self.config, self.model_config, npu, wakes)
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = _name(self.replica_rank)
        await server.clear_kv_cache.remote()  # it is up, or its error is raised here

    def get_ray_class_with_init_args(self) -> NoReturn:
        """Workers for a server that has none. Raises RolloutError: this one shares those of a trainer."""
        raise self._alone()

    def _alone(self) -> RolloutError:
        return RolloutError(
            subject="the mode of the virtual rollout engine",
            expected="hybrid: it shares its NPU with a trainer's worker",
            found=str(self.rollout_mode),
            fix="use a vLLM for the CPU for rollouts that stand alone",
        )

    async def abort_all_requests(self, *args: object, **kwargs: object) -> None:
        """Requests are answered whole: there is none to abort between two batches."""

    async def resume_generation(self) -> None:
        """Nothing was stopped."""


def _place(worker: object) -> tuple[str, str]:
    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()["NPU"][0])


class VirtualServerAdapter(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """The worker's side: hands the trainer's weights to the server of its replica."""

    def __init__(
        self,
        config: RolloutSettings,
        model_config: ModelSettings,
        device_mesh: DeviceMesh,
        replica_rank: int = -1,
        *args: object,
        **kwargs: object,
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        check_layout(self.config, self.model_config)
        rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server_name = _name(rank)
        self.sleep_level = 1

    async def resume(self, tags: list[str]) -> None:
        """Take memory back before weights or a cache are handed over: here it was never given up."""

    async def release(self) -> None:
        """The server gives up its weights when it is told to sleep."""

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **kwargs: object
    ) -> None:
        """Hand over a whole set of weights; raises RolloutError if they do not fit the server's model."""
        server = ray.get_actor(self._server_name)
        for bucket in _buckets(weights):
            await server.take_weights.remote(bucket)
        await server.complete_weights.remote(global_steps)


def _buckets(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, value in weights:
        # detach(): a parameter would be sent with its gradient.
        bucket.append((name, value.detach().cpu()))
        size += value.nbytes
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
