"""What the rules of the rollout find."""

from __future__ import annotations

from ...findings import Finding, Severity

__all__ = ["refusal", "remark"]


def refusal(code: str, *, subject: str, expected: str, found: str, fix: str) -> Finding:
    """What ends the job before its first process is started."""
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
    """What is said of a job that goes on."""
    return Finding(code, Severity.WARNING, text)
