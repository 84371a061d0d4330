"""A process forked while a thread of its parent patches has all patches or none, or reports the fault."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from verl_npu.registry.apply.engine import Registry
from verl_npu.registry.apply.lifecycle import Mutex
from verl_npu.registry.apply.slots import Binding, Slot
from verl_npu.registry.source.probe import Never

TARGETS = ("up.ops:one", "up.ops:two", "up.ops:three")


@pytest.fixture
def ops(package, plugin, why):
    """Add a feature with three targets, each of which takes a while to patch."""
    package.write(
        "up.ops", "def one(): return 'upstream'\ndef two(): return 'upstream'\ndef three(): return 'upstream'\n"
    )
    feature = plugin.feature("f")
    for number, target in enumerate(TARGETS):

        def ours() -> str:
            return "ours"

        ours.__name__ = f"patch_{number}"
        feature.replace(target, retired_by=Never("a test"), **why)(ours)
    return feature


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when the first of the three has been written; the others follow slowly."""
    started = threading.Event()
    real = Binding.write

    def write(binding: Binding, slots: Iterable[Slot]) -> None:
        real(binding, slots)
        started.set()
        time.sleep(0.05)

    monkeypatch.setattr(Binding, "write", write)
    return started


def in_child(answer: Callable[[], object]) -> object:
    """Return the result of `answer` in a fork of this process; fail if it hangs, or ends without an answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # An exception would silently end this thread, which is the child's last one.
        try:
            said = json.dumps(answer())
        except BaseException:
            said = json.dumps(traceback.format_exc())
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 20)
        assert ready, "the child hangs"
        said = os.read(reading, 1 << 16).decode()
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return json.loads(said) if said else f"the child ended with {os.waitstatus_to_exitcode(status)}"


def seen(registry: Registry, package, reported: list[str]) -> dict[str, object]:
    ops = sys.modules["up.ops"]
    return {
        "called": sorted({ops.one(), ops.two(), ops.three()}),
        "states": sorted({str(verdict.state) for verdict in registry.status().values()}),
        "reported": list(reported),
    }


def forked_midway(package, plugin, writing: threading.Event) -> dict[str, object]:
    """Return the state seen by a child that is forked after a thread has patched the first of three targets."""
    registry = plugin.start()
    package.load("up")
    thread = threading.Thread(target=package.load, args=("up.ops",))
    thread.start()
    assert writing.wait(10)
    found = in_child(lambda: seen(registry, package, plugin.reported))
    thread.join()
    return found


def test_a_fork_while_another_thread_patches_is_patched_whole(package, plugin, ops, writing) -> None:
    found = forked_midway(package, plugin, writing)
    assert found == {"called": ["ours"], "states": ["applied"], "reported": []}


def test_a_fork_that_does_not_get_its_turn_says_that_it_may_be_half_patched(
    package, plugin, ops, writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mutex, "seconds", 0.01)
    found = forked_midway(package, plugin, writing)
    assert found["states"] == ["failed"]
    (line,) = found["reported"]
    assert "forked while another thread of its parent was patching" in line
    assert plugin.reported == []
    assert {str(verdict.state) for verdict in plugin.registries[0].status().values()} == {"applied"}


def test_the_thread_that_patches_may_fork_itself(package, plugin, why) -> None:
    feature = plugin.feature("f")
    package.write("up.ops", "VALUE = 1\ndef one(): return 'upstream'\n")
    children: list[object] = []

    @feature.set("up.ops:VALUE", retired_by=Never("a test"), **why)
    def fork_meanwhile(value: int) -> int:
        children.append(in_child(lambda: value))
        return value + 1

    plugin.start()
    assert package.load("up.ops").VALUE == 2
    assert children == [1]


def test_forks_of_two_threads_wait_for_each_other(package, plugin, ops) -> None:
    registry = plugin.start()
    package.load("up.ops")
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(in_child(lambda: sorted(registry.states().values()))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["applied"]] * 4
    assert registry.status()
