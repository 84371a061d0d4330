"""Whether the variable of this feature does anything with the verl that is installed."""

from __future__ import annotations

from ... import environment, reporting
from ...registry.apply.ledger import LIVE
from ...registry.state import State

__all__ = ["warn_if_none"]

_REASONS = {
    State.NATIVE: "this verl bounds its micro-batches by itself",
    State.ABSENT: "this verl does not split batches by the functions that verl-npu knows",
}


def warn_if_none(state: State | None) -> None:
    """Say that VERL_NPU_TOKEN_BUDGET has no effect if it is set and the feature is not in force."""
    if state is None or state in LIVE or not environment.TOKEN_BUDGET.read():
        return
    reason = _REASONS.get(state, "its micro-batches may exceed their token budget")
    reporting.warn(f"{environment.TOKEN_BUDGET.name}=1 has no effect: the feature micro_batches is {state}; {reason}")
