"""The recorded contracts, and requests against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verl_npu.features.megatron.contract import Contract, contracts
from verl_npu.features.megatron.request import Request
from verl_npu.features.megatron.rules import problems
from verl_npu.findings import Finding

REVISIONS = tuple(contract.revision for contract in contracts() if not contract.adaptor)
"""The recorded revisions that were run."""
MEGATRON = {contract.revision: contract.megatron for contract in contracts()}


@pytest.fixture(params=REVISIONS)
def contract(request: pytest.FixtureRequest) -> Contract:
    """Each recorded revision that was run, in turn."""
    return next(contract for contract in contracts() if contract.revision == request.param)


@pytest.fixture
def judged(contract: Contract) -> Callable[..., list[Finding]]:
    """Return a function that judges overrides in a section and returns the certain and the possible problems."""

    def judge(section: dict[str, Any] | None = None, **overrides: Any) -> list[Finding]:
        return list(problems(Request("actor", overrides, section or {}), contract))

    return judge


@pytest.fixture
def refusals(judged: Callable[..., list[Finding]]) -> Callable[..., list[str]]:
    """Return a function that judges overrides and lists the refusals, as `subject: expected`."""

    def judge(section: dict[str, Any] | None = None, **overrides: Any) -> list[str]:
        return [
            f"{problem.subject}: {problem.expected}" for problem in judged(section, **overrides) if problem.refused
        ]

    return judge


@pytest.fixture
def doubts(judged: Callable[..., list[Finding]]) -> Callable[..., list[str]]:
    """Return a function that judges overrides and lists the warnings, as `subject: expected`."""

    def judge(section: dict[str, Any] | None = None, **overrides: Any) -> list[str]:
        found = (problem for problem in judged(section, **overrides) if not problem.refused)
        return [f"{problem.subject}: {problem.expected}" for problem in found]

    return judge
