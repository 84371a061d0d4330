"""An engine that vllm-ascend runs without the switch that it was given ends its first sync."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from verl_npu.errors import EngineError
from verl_npu.features.weight_sync.engines.vllm import refuse_lost_rl_mode

GIVEN = {"rl_config": {"enabled": True}}


def runner(additional: object) -> SimpleNamespace:
    return SimpleNamespace(vllm_config=SimpleNamespace(additional_config=additional))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """vllm-ascend's one configuration of the process."""
    configuration = SimpleNamespace(rl_config=SimpleNamespace(enabled=False))
    module = ModuleType("vllm_ascend.ascend_config")
    module.get_ascend_config = lambda: configuration  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
    return configuration


@pytest.mark.usefixtures("used")
def test_a_lost_switch_is_an_error() -> None:
    with pytest.raises(EngineError, match="found False, which is another engine's of this process"):
        refuse_lost_rl_mode(runner(GIVEN))


def test_a_switch_that_is_on_passes(used: SimpleNamespace) -> None:
    used.rl_config.enabled = True
    refuse_lost_rl_mode(runner(GIVEN))


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("additional", [None, {}, {"rl_config": {"enabled": False}}])
def test_an_engine_that_was_given_none_passes(additional: object) -> None:
    refuse_lost_rl_mode(runner(additional))


def test_a_release_that_does_not_know_it_passes(used: SimpleNamespace) -> None:
    del used.rl_config
    refuse_lost_rl_mode(runner(GIVEN))


def test_a_process_without_vllm_ascend_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm_ascend.ascend_config", raising=False)
    refuse_lost_rl_mode(runner(GIVEN))
