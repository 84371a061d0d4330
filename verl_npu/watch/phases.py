"""Where the time of a step goes: verl's timers that lie beside each other within a step.

The names are those of `marked_timer` in verl's trainers at all pins. Timers within others are left out: what vLLM's
wrapper and the agent loop report of `gen`, and all with a slash in their name.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["OTHER", "split"]

OTHER = "the rest"
"""What is in the step and under no timer."""
_PREFIX = "timing_s/"
_STEP = "timing_s/step"
_NOT_A_PHASE = frozenset(
    {"step", "start_profile", "stop_profile", "generate_sequences", "reshard", "tool_calls", "compute_score", "verify"}
)
_ROUNDING = 1.01


def split(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase of a step, the longest first, and the rest.

    There is no rest where the phases together take longer than the step: asynchronous trainers run some at once.
    """
    phases = {
        name.removeprefix(_PREFIX): seconds
        for name, seconds in metrics.items()
        if name.startswith(_PREFIX) and _is_phase(name.removeprefix(_PREFIX)) and 0 < seconds < float("inf")
    }
    found = dict(sorted(phases.items(), key=lambda phase: -phase[1]))
    whole = metrics.get(_STEP)
    if whole is not None and found and sum(found.values()) <= whole * _ROUNDING < float("inf"):
        found[OTHER] = max(0.0, whole - sum(found.values()))
    return found


def _is_phase(name: str) -> bool:
    return "/" not in name and name not in _NOT_A_PHASE
