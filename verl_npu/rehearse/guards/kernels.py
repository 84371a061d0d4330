"""Fused kernels of upstream's that are not made for NPUs."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Finding, Script

__all__ = ["fused_kernels"]

_KEY = "actor_rollout_ref.model.use_fused_kernels"


def fused_kernels(script: Script) -> Iterator[Finding]:
    """Warn of what users have reported of fused kernels."""
    if script.settings.truth(_KEY):
        yield Finding(
            "fused kernels",
            False,
            f"{_KEY}=True",
            "a fused entropy and log-probability kernel",
            "on a 910B its intermediate results overflowed (verl issue 7950); what it gives cannot be shown here",
            f"set {_KEY}=False if the log-probabilities of actor and rollout drift apart",
        )
