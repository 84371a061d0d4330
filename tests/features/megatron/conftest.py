"""The recorded contracts, and requests against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verl_npu.features.megatron.overrides.contract import Contract
from verl_npu.features.megatron.overrides.installation import contracts
from verl_npu.features.megatron.overrides.judgement import problems
from verl_npu.features.megatron.overrides.request import Request

REVISIONS = tuple(contract.revision for contract in contracts())
MEGATRON = {contract.revision: contract.megatron for contract in contracts()}


@pytest.fixture(params=REVISIONS)
def contract(request: pytest.FixtureRequest) -> Contract:
    """Each recorded revision in turn."""
    return next(contract for contract in contracts() if contract.revision == request.param)


@pytest.fixture
def refusals(contract: Contract) -> Callable[..., list[str]]:
    """Judge overrides in a section: what is wrong with them, as `subject: expected`."""

    def judge(section: dict[str, Any] | None = None, **overrides: Any) -> list[str]:
        request = Request("actor", overrides, section or {})
        return [f"{problem.subject}: {problem.expected}" for problem in problems(request, contract)]

    return judge
