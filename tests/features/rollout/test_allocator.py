"""Expandable segments beside an engine that is to sleep."""

from __future__ import annotations

from typing import Any

import pytest

from verl_npu.errors import FleetError
from verl_npu.features.rollout import rules
from verl_npu.features.rollout.patches import check_and_complete_engine_settings


def job(name: str = "vllm", sleeps: bool = True, told: str | None = None, **engine: object):
    omegaconf = pytest.importorskip("omegaconf")
    asked = {"PYTORCH_NPU_ALLOC_CONF": told} if told is not None else {}
    return omegaconf.OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"name": name, "free_cache_engine": sleeps, **engine}},
            "ray_kwargs": {"ray_init": {"num_cpus": None, "runtime_env": {"env_vars": asked}}},
        }
    )


def refuse_expandable_segments(config: Any) -> None:
    rules.check(config, ("rollout.expandable_segments",))


SEGMENTS = "max_split_size_mb:250,expandable_segments:True"


def test_an_engine_that_sleeps_is_refused_with_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", SEGMENTS)
    with pytest.raises(FleetError, match=r"=max_split_size_mb:250,expand.*free_cache_engine=False"):
        refuse_expandable_segments(job())


@pytest.mark.parametrize(
    "config", [{"name": "sglang"}, {"name": "???"}, {"sleeps": False}, {"told": "max_split_size_mb:250"}]
)
def test_other_jobs_keep_expandable_segments(config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", SEGMENTS)
    refuse_expandable_segments(job(**config))


@pytest.mark.upstream
def test_an_engine_that_the_user_keeps_awake_keeps_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", SEGMENTS)
    with pytest.raises(FleetError, match="built with enable_sleep_mode=True"):
        refuse_expandable_segments(job(mode="async"))
    refuse_expandable_segments(job(mode="async", engine_kwargs={"vllm": {"enable_sleep_mode": False}}))


def test_what_the_job_tells_its_workers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_NPU_ALLOC_CONF", raising=False)
    refuse_expandable_segments(job())
    with pytest.raises(FleetError, match="expandable_segments"):
        refuse_expandable_segments(job(told=SEGMENTS))


def test_upstreams_validation_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", SEGMENTS)
    asked: list[object] = []
    with pytest.raises(FleetError):
        check_and_complete_engine_settings(asked.append, job())
    assert asked == []
    check_and_complete_engine_settings(asked.append, job(name="sglang"))
    assert len(asked) == 1
