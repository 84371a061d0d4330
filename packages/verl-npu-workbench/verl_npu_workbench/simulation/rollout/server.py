"""The engine behind verl's server interface. verl uses this interface in async mode at v0.6.1, and always from
ccd7d934 on.

One Ray actor processes the requests to all ranks of a replica.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput

from verl_npu.ascend.variables import VISIBLE_DEVICES
from verl_npu.errors import RolloutError

from .engine import ModelSettings, RolloutSettings, Sampling, engine_of, sampling
from .layout import Place
from .prompts import Prompt
from .weights import Adapter
from .worker import server_name

if TYPE_CHECKING:
    from ray.actor import ActorHandle

# Requests that arrive within this time are processed as one batch.
GATHER_SECONDS = 0.02


class _Asked(TypedDict, total=False):
    """The sampling parameters of a request, with vLLM's names."""

    max_tokens: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    logprobs: int


@dataclass(slots=True)
class _Request:
    prompt: Prompt
    length: int
    sampling: Sampling
    with_log_probs: bool
    answer: asyncio.Future[TokenOutput]

    def batch_key(self) -> str:
        # Prompts with and without images are separate, because processors return different inputs for them.
        seen = (bool(self.prompt.images), bool(self.prompt.videos))
        return repr((self.length, self.sampling, self.with_log_probs, seen))


class VirtualServer:
    """A Ray actor that holds a whole model and processes concurrent requests as one batch."""

    def __init__(
        self,
        config: RolloutSettings,
        model_config: ModelSettings,
        npu: str,
        wakes: list[ActorHandle],
        place: Place,
        shares: bool,
    ) -> None:
        """Create the server.

        Args:
            config, model_config: verl's `rollout` and `model` sections.
            npu: the number of the NPU.
            wakes: the workers to notify when the server wakes up or sleeps.
            place: the rank's position within the replica.
            shares: whether the NPU is shared with a trainer.
        """
        self._config = omega_conf_to_dataclass(config)
        self._model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        # The actor has no NPU from Ray, so it uses its worker's.
        os.environ[VISIBLE_DEVICES] = npu
        tokenizer = self._model_config.tokenizer
        self._eos: int | None = None if self._config.ignore_eos else tokenizer.eos_token_id
        self._engine = engine_of(self._config, self._model_config, place)
        self._shares = shares
        if not shares and not self._engine.weights.ready:
            # Like vLLM, an engine without a trainer starts with the checkpoint's weights.
            self._engine.load(self._model_config.local_path)
        self._parts: list[tuple[str, torch.Tensor]] = []
        self._wakes = wakes
        self._global_steps: int | None = None
        self._waiting: list[_Request] = []
        # Batches and weight syncs take turns, because there is one model.
        self._turn = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._rejects = False
        self._cut = threading.Event()

    async def generate(
        self,
        prompt_ids: Iterable[int],
        sampling_params: _Asked,
        request_id: str,
        image_data: list[object] | None = None,
        video_data: list[object] | None = None,
        audio_data: list[object] | None = None,
        mm_processor_kwargs: dict[str, object] | None = None,
        **others: object,
    ) -> TokenOutput:
        """Generate a response to one prompt. While generation is paused, wait until it resumes. If the server rejects
        new requests during the pause, return an aborted response instead.

        Raises RolloutError for audio, which the engine does not support.
        """
        if audio_data:
            raise RolloutError(
                subject="a prompt for the virtual rollout engine",
                expected="text, images, and videos",
                found="audio_data",
                fix="use data without audio",
            )
        limit = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        request = _Request(
            prompt=Prompt(list(prompt_ids), image_data or (), video_data or (), mm_processor_kwargs or {}),
            length=int(self._config.response_length if limit is None else limit),
            sampling=sampling(
                True,
                sampling_params.get("temperature", 1.0),
                sampling_params.get("top_p", 1.0),
                sampling_params.get("top_k", -1),
                sampling_params.get("min_p", 0.0),
                sampling_params.get("repetition_penalty", self._config.get("repetition_penalty", 1.0)),
            ),
            with_log_probs=bool(sampling_params.get("logprobs")),
            answer=asyncio.get_running_loop().create_future(),
        )
        while not self._open.is_set():
            if self._rejects:
                return self._aborted()
            await self._open.wait()
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
                    # Pass the error to all callers, or the job would hang.
                    for request in batch:
                        request.answer.set_exception(error)
                    continue
                for request, output in zip(batch, outputs, strict=True):
                    request.answer.set_result(output)

    def _generate(self, batch: list[_Request]) -> list[TokenOutput]:
        torch.npu.set_device(self._engine.device)
        first = batch[0]
        answers = self._engine.generate(
            [request.prompt for request in batch],
            first.length,
            self._eos,
            first.sampling,
            first.with_log_probs,
            self._cut,
        )
        log_probs = None if answers.log_probs is None else answers.log_probs.tolist()
        outputs = []
        for index, row in enumerate(answers.responses.tolist()):
            ended = self._eos in row
            count = row.index(self._eos) + 1 if ended else len(row)
            outputs.append(
                TokenOutput(
                    token_ids=row[:count],
                    log_probs=None if log_probs is None else log_probs[index][:count],
                    stop_reason="completed" if ended or count == first.length else "aborted",
                    extra_fields={"global_steps": self._global_steps},
                )
            )
        return outputs

    def _aborted(self) -> TokenOutput:
        """Return the response to a request without generated tokens."""
        extra = {"global_steps": self._global_steps}
        return TokenOutput(token_ids=[], log_probs=None, stop_reason="aborted", extra_fields=extra)

    async def abort_all_requests(self, reject_request: bool = False, **others: object) -> None:
        """Return the tokens generated so far for all requests. Until `resume_generation` is called, hold or reject new
        requests.

        Source: vLLMHttpServer, whose clients request the rest of a response later (verl's partial rollout).
        """
        self._open.clear()
        self._rejects = reject_request
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.answer.set_result(self._aborted())
        self._cut.set()
        async with self._turn:
            self._cut.clear()

    async def resume_generation(self) -> None:
        """Accept requests again, including the requests that were held while generation was paused."""
        self._rejects = False
        self._open.set()

    async def take_weights(self, weights: list[tuple[str, torch.Tensor]], adapter: Adapter | None = None) -> None:
        """Copy some of the trainer's weights into the model. Raises RolloutError if the weights do not match the
        model."""
        async with self._turn:
            if adapter is None:
                self._engine.weights.take(weights)
            else:
                self._parts += weights

    async def complete_weights(self, global_steps: int | None, adapter: Adapter | None = None) -> None:
        """Finish a weight sync of all weights or of an adapter. Raises RolloutError if a weight is missing."""
        async with self._turn:
            parts, self._parts = self._parts, []
            self._engine.weights.complete(adapter, parts)
            self._global_steps = global_steps

    async def wake_up(self) -> None:
        """In revisions of verl whose server requests the weights when it wakes up (such as ccd7d934), request the
        weights from the workers. Otherwise, do nothing."""
        await asyncio.gather(*[worker.wake_up.remote() for worker in self._wakes])

    async def sleep(self) -> None:
        """Release the weights. In some revisions of verl, the method `sleep` of verl's server also makes the workers
        return to training. For these revisions, this method does the same."""
        if self._shares:
            async with self._turn:
                self._engine.weights.release()
        await asyncio.gather(*[worker.sleep.remote() for worker in self._wakes])

    async def set_global_steps(self, global_steps: int) -> None:
        """Set the training step of the weights that the engine uses for subsequent requests."""
        self._global_steps = global_steps

    async def clear_kv_cache(self) -> None:
        """Do nothing, because no cache is kept between requests."""

    async def release_kv_cache(self) -> None:
        """Do nothing, because no cache is kept between requests."""

    async def resume_kv_cache(self) -> None:
        """Do nothing, because no cache is kept between requests."""

    async def start_profile(self, **kwargs: object) -> None:
        """Do nothing, because the engine has no profiler."""

    async def stop_profile(self) -> None:
        """Do nothing, because the engine has no profiler."""


class VirtualReplica(RolloutReplica):  # type: ignore[misc]  # verl carries no types
    """A replica with one server, on the NPU of its first worker. The worker either trains or only receives weights."""

    async def launch_servers(self) -> None:
        """Start the server on its worker's NPU. Raises RolloutError if the engine does not support the mode."""
        if self.rollout_mode is RolloutMode.COLOCATED or getattr(self, "is_reward_model", False):
            raise self._alone()
        first, *_ = self.workers
        node, npu = await first.__ray_call__.remote(_place)
        # Until v0.7.0, the server tells its workers when to send weights; later, the trainer does.
        wakes = [worker for worker in self.workers if hasattr(worker, "wake_up")]
        server = (
            ray.remote(VirtualServer)
            .options(
                name=server_name(self.replica_rank),
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
                max_concurrency=1000,
            )
            .remote(
                self.config,
                self.model_config,
                npu,
                wakes,
                Place(self.replica_rank, 0, self.world_size),
                self.rollout_mode is RolloutMode.HYBRID,
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)
        await server.clear_kv_cache.remote()  # wait for the start, and raise its error here

    def get_ray_class_with_init_args(self) -> Any:
        """Return the class of the workers that receive weights for a server without a trainer. verl 0.7.1 added these
        workers.

        Raises RolloutError before verl 0.7.1.
        """
        base = RolloutReplica.get_ray_class_with_init_args
        if getattr(base, "__isabstractmethod__", False):
            raise self._alone()
        return base(self)

    def _alone(self) -> RolloutError:
        return RolloutError(
            subject="the mode of the virtual rollout engine",
            expected="a mode where the engine shares an NPU with a trainer's worker or, from verl 0.7.1 on, "
            "has its own NPU",
            found=str(self.rollout_mode) + (" for a reward model" if getattr(self, "is_reward_model", False) else ""),
            fix="use vLLM's CPU build in this mode",
        )


def _place(worker: object) -> tuple[str, str]:
    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()["NPU"][0])
