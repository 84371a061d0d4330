"""Patches of upstream's rollouts, each called as upstream's own code calls it."""

from __future__ import annotations

import asyncio
import sys
import types
from types import SimpleNamespace
from typing import Any, List, Optional  # noqa: UP035  # an older torch knows these and not the built-in ones

import pytest
import torch
from packaging import version

from verl_npu.features.rollout import (
    end_answers_at_response_length,
    give_the_recipes_actor_a_pool,
    keep_weights_that_are_not_offloaded,
    name_lists_of_operators_as_python_does,
    prevent_double_repetition_in_hf_rollout,
    reduce_vllm_version_to_release,
)
from verl_npu.features.rollout.releases import Release

# An answer ends at response_length, not where prompt and response together would end.


class Generator:
    """A stand-in for the engine that answers with as many tokens as allowed."""

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> int:
        await asyncio.sleep(0)
        return sampling_params.max_tokens  # type: ignore[no-any-return]


class Server:
    """A stand-in for upstream's server, whose answers may use all tokens of 12 that the prompt leaves."""

    def __init__(self, response_length: int = 8) -> None:
        self.engine = Generator()
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


# The trainer's weights after they were handed over.


class Engine:
    def __init__(self, offloads: bool) -> None:
        self.is_param_offload_enabled = offloads
        self.device = "npu"

    def to(self, device: str, model: bool = True) -> None:
        self.device = device


async def hand_over(worker: SimpleNamespace, fails: bool = False) -> str:
    worker.actor.engine.to("npu", model=True)
    worker.actor.engine.to("cpu", model=True)
    if fails:
        raise RuntimeError("the rollout is gone")
    return "done"


@pytest.mark.parametrize(("offloads", "device"), [(False, "npu"), (True, "cpu")])
def test_weights_go_to_the_host_only_if_they_are_offloaded(offloads: bool, device: str) -> None:
    engine = Engine(offloads)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=engine))
    assert asyncio.run(keep_weights_that_are_not_offloaded(hand_over, worker)) == "done"
    assert engine.device == device


def test_after_a_hand_over_the_engine_moves_as_before() -> None:
    engine = Engine(False)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=engine))
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(keep_weights_that_are_not_offloaded(hand_over, worker, fails=True))
    engine.to("cpu")
    assert engine.device == "cpu"


def test_a_worker_without_an_actor_is_left_to_upstream() -> None:
    async def without(worker: SimpleNamespace) -> str:
        return "done"

    assert asyncio.run(keep_weights_that_are_not_offloaded(without, SimpleNamespace(actor=None))) == "done"


# vLLM's release, as upstream compares it.


@pytest.mark.parametrize("text", ["0.11.0", "0.11.0+empty", "0.11.0.post2", "0.11.0+cpu"])
def test_a_build_of_a_release_is_not_newer_than_the_release(text: str) -> None:
    release = Release(text)
    assert not release > "0.11.0"
    assert release >= "0.11.0"
    assert release < "0.12.0"
    assert release == "0.11.0"
    assert not version.parse(release) > version.parse("0.11.0")


def test_releases_compare_as_numbers() -> None:
    # Compared as text, 0.9.1 is above both.
    assert Release("0.9.1") < "0.11.0"
    assert Release("0.9.1") <= "0.10.0"
    assert Release("0.12.0") > "0.11.0"
    assert Release("0.11.0rc1") < "0.11.0"


@pytest.mark.parametrize(("found", "made"), [("0.11.0+empty", "0.11.0"), ("dev", "dev")])
def test_vllms_own_name_for_itself_becomes_the_release(found: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = types.ModuleType("vllm")
    vllm.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    assert reduce_vllm_version_to_release("0.11.0+empty") == "0.11.0+empty"
    assert vllm.__version__ == made  # type: ignore[attr-defined]


# The types of vLLM's operators, as torch up to 2.6 knows them.


def blockwise(x: torch.Tensor, sizes: list[int], shape: list[int] | None, weights: list[torch.Tensor]) -> torch.Tensor:
    return x


blockwise.__annotations__ |= {
    "x": torch.Tensor,
    "sizes": list[int],
    "shape": Optional[list[int]],  # noqa: UP045  # as vLLM 0.9.1 writes it
    "weights": list[torch.Tensor],
    "return": torch.Tensor,
}


def test_an_older_torch_knows_lists_as_vllm_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {
        torch.Tensor: "Tensor",
        List[torch.Tensor]: "Tensor[]",  # noqa: UP006  # these are what that torch has
        List[int]: "SymInt[]",  # noqa: UP006
        Optional[List[int]]: "SymInt[]?",  # noqa: UP006, UP045
    }
    monkeypatch.setattr("torch._library.infer_schema.SUPPORTED_PARAM_TYPES", old)
    with pytest.raises(ValueError, match=r"Parameter sizes has unsupported type list\[int\]"):
        torch.library.infer_schema(blockwise, mutates_args=())
    name_lists_of_operators_as_python_does()
    said = torch.library.infer_schema(blockwise, mutates_args=())
    assert said == "(Tensor x, SymInt[] sizes, SymInt[]? shape, Tensor[] weights) -> Tensor"


def test_what_a_torch_knows_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {List[int]: "SymInt[]", list[int]: "its own"}  # noqa: UP006
    monkeypatch.setattr("torch._library.infer_schema.SUPPORTED_PARAM_TYPES", known)
    name_lists_of_operators_as_python_does()
    assert known[list[int]] == "its own"


# Settings of other rollouts.


def test_the_hf_engine_gets_n_of_one_and_the_trainers_configuration_stays() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"n": 8, "temperature": 0.5})
    seen = []
    prevent_double_repetition_in_hf_rollout(
        lambda self, module, config: seen.append((self, module, config)), "self", "module", config
    )
    (engine, module, given) = seen[0]
    assert (engine, module, dict(given)) == ("self", "module", {"n": 1, "temperature": 0.5})
    assert config.n == 8


def test_a_role_without_a_pool_gets_upstreams_one_and_others_keep_theirs() -> None:
    runner = SimpleNamespace(role_worker_mapping={"critic": 1, "actor": 2}, mapping={"critic": "own_pool"})

    def upstreams(runner: SimpleNamespace, config: object) -> dict[str, str]:
        return dict(runner.mapping)

    made = give_the_recipes_actor_a_pool(upstreams, runner, object())
    assert made == {"critic": "own_pool", "actor": "global_pool"}
