"""The feature that the modules beside this one add their patches to, and what its rules find."""

from __future__ import annotations

from ...findings import Finding, Severity
from ...registry.patch import Feature

__all__ = ["refusal", "remark", "rollout"]

rollout = Feature(
    "rollout", "Rollout engines start only with settings that work, and answer each prompt as often as configured."
)


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
