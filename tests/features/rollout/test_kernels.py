"""Kernels that upstream lets through: a line for each, and the job goes on."""

from __future__ import annotations

import pytest

from verl_npu import reporting
from verl_npu.features.rollout import rules
from verl_npu.features.rollout.patches import check_and_complete_engine_settings


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch):
    """What is said of a job, with no Triton installed."""
    omegaconf = pytest.importorskip("omegaconf")
    monkeypatch.setattr(reporting, "_said", set())
    monkeypatch.setattr(rules, "_installed", lambda package: False)
    lines: list[str] = []
    monkeypatch.setattr(rules, "warn", lines.append)

    def ask(strategy: str = "fsdp", **model: object) -> list[str]:
        role = {"model": model, "actor": {"strategy": strategy}, "rollout": {"name": "sglang"}}
        check_and_complete_engine_settings(
            lambda config: None, omegaconf.OmegaConf.create({"actor_rollout_ref": role})
        )
        return lines

    return ask


TRITON = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "triton"}}
TORCH = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}


@pytest.mark.parametrize(("strategy", "model"), [("fsdp", TRITON), ("megatron", TORCH)])
def test_fused_kernels_of_tritons_may_overflow(said, strategy: str, model: dict[str, object]) -> None:
    (line,) = said(strategy, **model)
    assert "ub overflow" in line
    assert "issues/7950" in line


@pytest.mark.parametrize("model", [{}, TORCH, {**TRITON, "use_fused_kernels": False}])
def test_other_jobs_hear_nothing(said, model: dict[str, object]) -> None:
    assert said(**model) == []


def test_liger_is_said_to_be_unsupported(said) -> None:
    (line,) = said(use_liger=True)
    assert "liger-kernel not supported" in line


def test_two_tritons_are_said_to_overwrite_each_other(said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_installed", lambda package: True)
    (line,) = said()
    assert "triton and triton-ascend are both installed" in line
