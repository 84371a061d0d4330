"""Findings of the rollout's rules."""

from __future__ import annotations

from ...findings import Finding, Severity


def refusal(code: str, *, subject: str, found: str, fix: str, expected: str = "") -> Finding:
    """Create a finding that stops the job before its first process starts."""
    return Finding(
        code=code,
        severity=Severity.ERROR,
        found=found,
        subject=subject,
        expected=expected,
        fix=fix,
        override="VERL_NPU_DISABLE=rollout",
    )


def remark(code: str, text: str) -> Finding:
    """Create a finding that is only a warning."""
    return Finding(code, Severity.WARNING, text)
