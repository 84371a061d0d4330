"""The states of a lifecycle: the work begins once, at the right time, and ends whatever comes meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from verl_npu.registry.apply.lifecycle import Lifecycle, Mutex, Phase


class Work:
    """Work that records what is done with it, and in which phase."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle("up", self.make)
        self.done: list[str] = []
        self.while_making: Callable[[], object] = lambda: None
        self.while_beginning: Callable[[], object] = lambda: None

    def make(self, mutex: Mutex) -> Work:
        self.done.append("made")
        self.while_making()
        return self

    def begin(self) -> None:
        self.done.append(f"begun {self.lifecycle.phase.value}")
        self.while_beginning()

    def end(self) -> None:
        self.done.append(f"ended {self.lifecycle.phase.value}")

    def abandon(self) -> None: ...

    def activity(self) -> object: ...


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.lifecycle.deactivate()


def test_it_begins_before_the_trigger_is_executed_and_ends_when_it_is_told_to(work: Work, package) -> None:
    package.write("up", "import sys\nphase = sys.modules['user_work'].lifecycle.phase\n")
    sys.modules["user_work"] = ModuleType("user_work")
    sys.modules["user_work"].lifecycle = work.lifecycle
    assert (work.lifecycle.phase, work.lifecycle.active) == (Phase.OFF, False)
    work.lifecycle.activate()
    assert (work.lifecycle.phase, work.lifecycle.active) == (Phase.WAITING, True)
    assert package.load("up").phase is Phase.LIVE
    work.lifecycle.deactivate()
    assert work.lifecycle.phase is Phase.OFF
    assert work.done == ["made", "begun beginning", "ended off"]


def test_it_begins_at_once_where_the_trigger_is_there_and_once(work: Work, package) -> None:
    package.load("up")
    work.lifecycle.activate()
    work.lifecycle.activate()
    assert work.done == ["made", "begun beginning"]


@pytest.mark.parametrize("when", ["while_making", "while_beginning"])
def test_what_it_imports_may_come_back_to_it(work: Work, package, when: str) -> None:
    setattr(work, when, work.lifecycle.activate)
    work.lifecycle.activate()
    package.load("up")
    assert work.done == ["made", "begun beginning"]
    assert work.lifecycle.phase is Phase.LIVE


@pytest.mark.parametrize("when", ["while_making", "while_beginning"])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_fails_or_is_interrupted_begins_again(work: Work, package, when: str, kind) -> None:
    def fail() -> None:
        raise kind("injected")

    setattr(work, when, fail)
    work.lifecycle.activate()
    with pytest.raises(kind):
        package.load("up")
    assert work.lifecycle.phase is Phase.WAITING
    setattr(work, when, lambda: None)
    package.load("up")
    assert work.lifecycle.phase is Phase.LIVE


def test_what_is_ended_while_it_is_made_does_not_begin(work: Work, package) -> None:
    def end() -> None:
        thread = threading.Thread(target=work.lifecycle.deactivate)
        thread.start()
        thread.join()

    work.while_making = end
    work.lifecycle.activate()
    package.load("up")
    assert work.lifecycle.phase is Phase.OFF
    assert work.done == ["made"]


def test_threads_that_come_at_once_begin_one_work(work: Work, package) -> None:
    package.load("up")
    barrier = threading.Barrier(2)
    work.while_making = lambda: barrier.wait(10)
    threads = [threading.Thread(target=work.lifecycle.activate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.lifecycle.work is work
    assert work.lifecycle.phase is Phase.LIVE
