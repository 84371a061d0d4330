"""The length of an answer of vLLM's server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

from ...registry.source.probe import Defines
from .feature import rollout

__all__ = ["end_answers_at_response_length"]

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_EARLY = f"{_SERVER}:vLLMHttpServerBase.generate"

# Answers of one server are generated at the same time.
_limit: ContextVar[int | None] = ContextVar("_limit", default=None)


class Sampling(Protocol):
    """How an answer is sampled, as vLLM is told."""

    max_tokens: int | None


class Engine(Protocol):
    """The engine of a server."""

    generate: Callable[..., object]


class Lengths(Protocol):
    """What the rollout's configuration says of lengths."""

    response_length: int


class Server(Protocol):
    """Upstream's server."""

    engine: Engine
    config: Lengths


@rollout.wrap(
    _EARLY,
    why="An answer may take all that its prompt leaves of prompt_length and response_length together. What is longer "
    "than response_length is generated, and then cut off.",
    how="The engine is told to end an answer at response_length, unless the caller says how long it may be.",
    link="https://github.com/verl-project/verl/commit/b3202420616e169f48cba99ce00e7e9fd22e7493",
    retired_by=Defines(f"{_SERVER}:vLLMHttpServer.generate"),
    requires=Defines(_EARLY),
)
async def end_answers_at_response_length(
    original: Callable[..., Awaitable[object]],
    server: Server,
    prompt_ids: Sequence[int],
    sampling_params: Mapping[str, object],
    *args: object,
    **kwargs: object,
) -> object:
    """Generate one answer."""
    _watch(server.engine)
    said = sampling_params.keys() & {"max_tokens", "max_new_tokens"}
    before = _limit.set(None if said else server.config.response_length)
    try:
        return await original(server, prompt_ids, sampling_params, *args, **kwargs)
    finally:
        _limit.reset(before)


def _watch(engine: Engine) -> None:
    """Have the engine's `generate` end answers at the limit of the call that it belongs to, once for each engine."""
    if hasattr(engine.generate, "_verl_npu_limits"):
        return
    original = engine.generate

    def generate(prompt: object, sampling_params: Sampling, *args: object, **kwargs: object) -> object:
        limit = _limit.get()
        if limit is not None and (sampling_params.max_tokens is None or sampling_params.max_tokens > limit):
            sampling_params.max_tokens = limit
        return original(prompt, sampling_params, *args, **kwargs)

    generate._verl_npu_limits = True  # type: ignore[attr-defined]
    engine.generate = generate
