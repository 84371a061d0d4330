"""What the rules of a rollout say of a job."""

from __future__ import annotations

import pytest

from verl_npu.features.rollout import rules


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the job that goes on is told."""
    lines: list[str] = []
    monkeypatch.setattr(rules, "warn", lines.append)
    return lines
