"""Which engine generates in a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from verl_npu.rehearse.engine import Choice, chosen_engine
from verl_npu.rehearse.settings import Settings

ROLLOUT = "actor_rollout_ref.rollout"
AWAKE = {f"{ROLLOUT}.free_cache_engine": False}


def choice(name: str, asked: str = "auto", vllm: str = "", alone: bool = False, **more: object) -> Choice:
    settings = Settings({f"{ROLLOUT}.name": name, f"{ROLLOUT}.free_cache_engine": True, **more})
    return chosen_engine(settings, asked, alone, lambda package: {"vllm": vllm}[package])


def chosen(name: str, asked: str = "auto", vllm: str = "", **more: object) -> str:
    return choice(name, asked, vllm, **more).name


@pytest.mark.parametrize("own", ["hf", "naive", "virtual", "???", ""])
def test_what_needs_no_npu_stays_and_so_does_a_script_without_one(own: str) -> None:
    assert chosen(own, vllm="0.11.0") == ""


@pytest.mark.parametrize("own", ["vllm", "sglang"])
def test_transformers_takes_the_place_of_an_engine_that_is_not_installed(own: str) -> None:
    assert chosen(own) == "virtual"


def test_vllm_that_is_installed_stays() -> None:
    assert (chosen("vllm", vllm="0.11.0"), chosen("sglang", vllm="0.11.0")) == ("", "virtual")


SLEEPS: dict[str, tuple[Mapping[str, object], str]] = {
    "by default": ({}, "virtual"),
    "if it is asked to": ({f"{ROLLOUT}.enable_sleep_mode": True}, "virtual"),
    "not if it keeps its cache": (AWAKE, ""),
    "not if it is told not to": ({f"{ROLLOUT}.enable_sleep_mode": False}, ""),
    "not if the engine is told not to": ({f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False}, ""),
}


@pytest.mark.parametrize(("more", "engine"), SLEEPS.values(), ids=SLEEPS.keys())
def test_vllm_for_cpus_is_not_taken_where_it_would_have_to_sleep(more: Mapping[str, object], engine: str) -> None:
    assert chosen("vllm", vllm="0.11.0+cpu", **more) == engine


def test_the_user_has_the_last_word() -> None:
    assert chosen("vllm", asked="vllm", vllm="0.11.0+cpu") == ""
    assert chosen("sglang", asked="vllm", vllm="0.11.0+cpu") == "vllm"
    assert chosen("vllm", asked="virtual", vllm="0.11.0") == "virtual"


def test_what_stands_in_the_way_is_said() -> None:
    said = choice("vllm", vllm="0.11.0+cpu").note
    assert said.endswith("vLLM 0.11.0+cpu, which is installed, cannot sleep as the script asks")


@pytest.mark.parametrize(("vllm", "awake"), [("0.11.0+cpu", True), ("0.11.0", False)])
def test_a_rollout_with_npus_of_its_own_keeps_a_vllm_that_cannot_sleep(vllm: str, awake: bool) -> None:
    found = choice("vllm", vllm=vllm, alone=True)
    assert (found.name, found.awake) == ("", awake)
