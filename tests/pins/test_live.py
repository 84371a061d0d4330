"""At every pin, anything put over a live target is refused unless the target is called as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import live
from .losses import LOCKS

NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry")
# A function, a method, and methods that the controller calls on all workers.
SOME = ("verl.utils.seqlen_balancing", "verl.single_controller.ray")
LEAST = 23
"""The least number of answers for a target that is a function."""

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        pytest.param("v0.6.1", SOME, id="some of v0.6.1"),
        *(pytest.param(lock.pin, (), id=lock.pin, marks=NIGHTLY) for lock in LOCKS["verl"]),
    ],
)
def test_what_is_put_over_a_target_is_refused_unless_it_is_called_as_before(
    name: str, modules: tuple[str, ...], importable: Callable[[str], Path]
) -> None:
    found = live.at(importable(name), *modules)
    assert found.revision == name
    assert [said for said in found.said if not live.fits(said)] == []
    functions = {said.target for said in found.said if said.make == "function"}
    assert len(functions) >= (3 if modules else 30)
    assert len(found.said) >= LEAST * len(functions)
