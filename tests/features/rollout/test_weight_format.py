"""The key of additional_config that would have a sync garble weights."""

from __future__ import annotations

import pytest

from verl_npu.errors import FleetError
from verl_npu.features.rollout.allocator import check_allocator_for_sleep_mode
from verl_npu.features.rollout.weight_format import refuse_weight_format


def job(additional: object, name: str = "vllm"):
    omegaconf = pytest.importorskip("omegaconf")
    engine = {"name": name, "engine_kwargs": {"vllm": {"additional_config": additional}}}
    return omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": engine}})


@pytest.mark.parametrize("mode", [1, 2])
def test_weights_in_fractal_nz_are_refused_before_upstream_validates(mode: int) -> None:
    asked: list[object] = []
    with pytest.raises(FleetError, match=rf"additional_config\.weight_nz_mode={mode}: .*VLLM_ASCEND_ENABLE_NZ=0"):
        check_allocator_for_sleep_mode(asked.append, job({"weight_nz_mode": mode}))
    assert asked == []


@pytest.mark.parametrize(
    ("additional", "name"),
    [(None, "vllm"), ({}, "vllm"), ({"weight_nz_mode": 0}, "vllm"), ({"weight_nz_mode": 1}, "sglang")],
)
def test_other_jobs_are_let_through(additional: object, name: str) -> None:
    refuse_weight_format(job(additional, name))
