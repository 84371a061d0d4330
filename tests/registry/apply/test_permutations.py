"""Import, activate, deactivate and reload in every order."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

EVENTS = ("import", "activate", "deactivate", "reload")
ORDERS = [order for length in range(1, 5) for order in itertools.permutations(EVENTS, length)]
SOURCE = """
    def replaced(x):
        return x

    class Model:
        def wrapped(self, x):
            return x
"""


def test_every_order_is_tested() -> None:
    assert len(set(ORDERS)) == len(ORDERS) == 4 + 12 + 24 + 24


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_patched_if_and_only_if_active_in_the_end(package, plugin, why, order: tuple[str, ...]) -> None:
    package.write("up.ops", SOURCE)
    feature = plugin.feature("f")

    @feature.replace("up.ops:replaced", retired_by=Never("a test"), **why)
    def replaced(x):
        return ("ours", x)

    @feature.wrap("up.ops:Model.wrapped", retired_by=Never("a test"), **why)
    def wrapped(original, self, x):
        return ("ours", original(self, x))

    @feature.add("up.ops:added", **why)
    def added(x):
        return ("ours", x)

    registry = plugin.start()
    registry.deactivate()
    for event in order:
        if event == "import" or (event == "reload" and "up.ops" not in sys.modules):
            package.load("up.ops")
        elif event == "reload":
            importlib.reload(sys.modules["up.ops"])
        else:
            getattr(registry, event)()

    active = "activate" in order and order[order.index("activate") :].count("deactivate") == 0
    ops = package.load("up.ops")
    expected = ("ours", 1) if active else 1
    assert (ops.replaced(1), ops.Model().wrapped(1), hasattr(ops, "added")) == (expected, expected, active)
    assert registry.active is active
    if active:
        assert registry.states() == {"f": State.APPLIED}
