"""The user's implementation of attention replaces upstream's constant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_npu.features.attention import flash


def model(**override: str) -> dict[str, Any]:
    return {"override_config": override} if override else {}


def build_actor(worker: Any, path: Any, fsdp: Any, optim: Any, override: Any, role: str = "actor") -> tuple[str, str]:
    return role, "flash_attention_2"


def build(worker: Any, config: Any) -> str:
    return "flash_attention_2"


def build_sft(trainer: Any) -> str:
    return "flash_attention_2"


def load(path: Any, dtype: Any, config: Any, trust: Any) -> str:
    return "flash_attention_2"


@pytest.mark.parametrize(
    ("override", "expected"), [({"attn_implementation": "sdpa"}, "sdpa"), ({}, "flash_attention_2")]
)
def test_the_actor_gets_what_its_override_says(override: dict[str, str], expected: str) -> None:
    assert flash.use_configured_attention_for_actor(build_actor, None, "", {}, {}, override, role="ref") == (
        "ref",
        expected,
    )


def test_workers_get_what_the_model_says() -> None:
    chosen = flash.use_configured_attention
    assert chosen(build, None, SimpleNamespace(model=model(attn_implementation="eager"))) == "eager"
    assert chosen(build, None, SimpleNamespace(model=model())) == "flash_attention_2"


def test_fine_tuning_gets_what_the_model_says() -> None:
    config = SimpleNamespace(model=model(attn_implementation="eager"))
    assert flash.use_configured_attention_for_sft(build_sft, SimpleNamespace(config=config)) == "eager"


@pytest.mark.parametrize(("says", "expected"), [("sdpa", "sdpa"), (None, "flash_attention_2")])
def test_a_model_with_a_value_head_follows_its_own_configuration(says: str | None, expected: str) -> None:
    config = SimpleNamespace(_attn_implementation=says)
    assert flash.use_configured_attention_for_value_head(load, "", None, config, False) == expected
