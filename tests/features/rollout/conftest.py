"""Fixtures for the tests of the rollout's rules."""

from __future__ import annotations

import pytest

from verl_npu.features.rollout import rules


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings that a job prints and goes on."""
    lines: list[str] = []
    monkeypatch.setattr(rules, "warn", lines.append)
    return lines
