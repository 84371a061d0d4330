"""The key of additional_config that would have a sync garble weights."""

from __future__ import annotations

import pytest

from verl_npu.features.rollout.patches import check_and_complete_engine_settings


def job(additional: object, name: str = "vllm"):
    omegaconf = pytest.importorskip("omegaconf")
    engine = {"name": name, "engine_kwargs": {"vllm": {"additional_config": additional}}}
    return omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": engine}})


@pytest.mark.parametrize("mode", [1, 2])
def test_weights_in_fractal_nz_are_said_before_upstream_validates(
    mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    validated: list[object] = []
    check_and_complete_engine_settings(validated.append, job({"weight_nz_mode": mode}))
    said = capsys.readouterr().err
    assert f"additional_config.weight_nz_mode={mode}: from vllm-ascend 0.23 on" in said
    assert len(validated) == 1


@pytest.mark.parametrize(
    ("additional", "name"),
    [(None, "vllm"), ({}, "vllm"), ({"weight_nz_mode": 0}, "vllm"), ({"weight_nz_mode": 1}, "sglang")],
)
def test_nothing_is_said_of_other_jobs(additional: object, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_and_complete_engine_settings(lambda config: None, job(additional, name))
    assert "weight_nz_mode" not in capsys.readouterr().err
