"""The memory that the large tensors of a job take on each of its machines, beside the NPUs."""

from __future__ import annotations

from .job import Phase
from .planning import Planned


def host_peaks(planned: Planned) -> dict[str, int]:
    """Return, for each phase, the bytes that large tensors take in a machine's host memory. All ranks of the machine
    are counted at their peaks.

    While loading, verl lets one rank read the whole model and gives the others their shares, unless weights are tied.
    Source: verl/utils/fsdp_utils.py, `get_init_weight_context_manager`.
    """
    local, found = planned.share.local, {}
    for phase in Phase:
        costs = [cost for outcome in planned.outcomes for cost in outcome.phases if cost.phase == phase.value]
        if not costs:
            continue
        most = max(cost.host for cost in costs)
        alone = phase is Phase.LOAD and not planned.model.tied
        others = max(cost.host_after for cost in costs) if alone else most
        found[phase.value] = most + (local - 1) * others
    return found
