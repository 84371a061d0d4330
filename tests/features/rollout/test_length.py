"""An answer ends at response_length, and not where prompt and response together would."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from verl_npu.features.rollout.patches import end_answers_at_response_length


class Engine:
    """It answers with as many tokens as it may."""

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> int:
        await asyncio.sleep(0)
        return sampling_params.max_tokens  # type: ignore[no-any-return]


class Server:
    """Upstream's, which lets an answer take what its prompt leaves of 12 tokens."""

    def __init__(self, response_length: int = 8) -> None:
        self.engine = Engine()
        self.config = SimpleNamespace(response_length=response_length)

    async def generate(self, server: Any, prompt_ids: list[int], sampling_params: dict[str, int], name: str) -> int:
        most = sampling_params.get("max_tokens", 12 - len(prompt_ids))
        sampling = SimpleNamespace(max_tokens=most)
        return await self.engine.generate(prompt=prompt_ids, sampling_params=sampling, request_id=name)

    async def answer(self, prompt: int, **sampling: int) -> object:
        return await end_answers_at_response_length(self.generate, self, [0] * prompt, sampling, "one")


@pytest.mark.parametrize(("prompt", "tokens"), [(1, 8), (4, 8), (5, 7)])
def test_it_ends_at_response_length_or_before(prompt: int, tokens: int) -> None:
    assert asyncio.run(Server().answer(prompt)) == tokens


def test_a_caller_who_says_how_long_it_may_be_is_heard() -> None:
    assert asyncio.run(Server().answer(1, max_tokens=11)) == 11


def test_answers_at_the_same_time_have_each_their_own_limit() -> None:
    server = Server()

    async def both() -> list[object]:
        return list(await asyncio.gather(server.answer(1), server.answer(1, max_tokens=10), server.answer(2)))

    assert asyncio.run(both()) == [8, 10, 8]


def test_an_engine_is_told_once_for_all_its_answers() -> None:
    server = Server()
    asyncio.run(server.answer(1))
    watched = server.engine.generate
    asyncio.run(server.answer(1))
    assert server.engine.generate is watched
