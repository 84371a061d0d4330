"""The nursery of ranks, one for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ranks import Nursery, Run


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def run_ranks(nursery: Nursery) -> Run:
    """Run a program on each rank of a group, with two virtual NPUs, and return how each ended."""
    return nursery.run
