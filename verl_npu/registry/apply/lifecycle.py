"""The lifecycle of a registry: one state in each process, and one hook on the module whose import begins the work.

Every `import torch` loads this module and `hooks`, so both import almost nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from enum import Enum

from . import hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Protocol

    from ..state import RegistryActivity

    class Work(Protocol):
        """Work that can begin and end. Calling `begin` or `end` again does nothing, or resumes interrupted work."""

        def begin(self) -> None: ...
        def end(self) -> None: ...
        def activity(self) -> RegistryActivity: ...

        def abandon(self) -> None:
            """Give up unfinished work. Called in a forked child process if another thread of the parent process was
            working during the fork."""


class Phase(Enum):
    """The phase of a lifecycle."""

    OFF = "off"
    """There is no hook, and nothing is patched."""
    WAITING = "waiting"
    """The hook is in place. The module `trigger` is not imported yet, or its import began the work but did not finish
    it."""
    BEGINNING = "beginning"
    """The module `trigger` is being imported. The patches are judged, and applied to modules that are already
    loaded."""
    LIVE = "live"
    """The patches are judged. Each is applied when its module is imported."""


class Mutex:
    """A re-entrant lock that is always free in the child of a fork. The data that it guards is then intact.

    A fork copies the data of all threads, but it copies only one of the threads: the one that forks. A plain
    lock might stay held forever in the child. If the child got a new lock instead, another thread's work might be half
    done. Therefore, a fork waits until no other thread holds this lock. The wait has a time limit, because the other
    thread may itself be waiting for the forking thread, for example to finish an import.
    """

    seconds = 10.0
    """How many seconds a fork waits for another thread. Work under the lock takes less."""

    def __init__(self, broken: Callable[[], None]) -> None:
        """Create the lock. If a fork waits too long, the child calls `broken`, because work may be unfinished in the
        child."""
        self.lock = threading.RLock()
        """The lock itself, for a `with` statement. Python lets no interruption come between the guarded code and the
        release."""
        self._broken = broken
        # Whether the forking thread got the lock.
        self._fork = threading.local()
        # A weak reference, because Python never forgets a function that is registered for forks.
        me = weakref.ref(self)

        def call(act: Callable[[Mutex], None]) -> None:
            alive = me()
            if alive is not None:
                act(alive)

        os.register_at_fork(
            before=lambda: call(Mutex._before_fork),
            after_in_parent=lambda: call(Mutex._after_fork),
            after_in_child=lambda: call(Mutex._after_fork_in_child),
        )

    def _before_fork(self) -> None:
        self._fork.got = self.lock.acquire(timeout=self.seconds)

    def _after_fork(self) -> None:
        if self._fork.got:
            self.lock.release()

    def _after_fork_in_child(self) -> None:
        if self._fork.got:
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self._broken()


def _raise(error: Exception) -> None:
    raise error


class Lifecycle:
    """The lifecycle of a `Work`, which begins when the module `trigger` is about to be imported, and ends on
    request."""

    def __init__(
        self,
        trigger: str,
        make: Callable[[Mutex], Work | None],
        failed: Callable[[Exception], None] = _raise,
    ) -> None:
        """Create a lifecycle. `make` creates the work, or deactivates this lifecycle and returns None. `failed`
        handles an error or raises it."""
        self.mutex = Mutex(self._forked_midway)
        self.phase = Phase.OFF
        self.work: Work | None = None
        self._trigger = trigger
        self._make = make
        self._failed = failed
        self._inside = hooks.Inside()

    @property
    def active(self) -> bool:
        """Whether the lifecycle is active."""
        return self.phase is not Phase.OFF

    def activate(self) -> None:
        """Begin this lifecycle's work when the module `trigger` is imported, or now if this module is already loaded.
        Work that was interrupted earlier is resumed."""
        with self.mutex.lock:
            hooks.add_hook(self._trigger, self._triggered, before=True)
            if self.phase is Phase.OFF:
                self.phase = Phase.WAITING
        if self._trigger in sys.modules and self.phase is not Phase.LIVE:
            self._triggered(sys.modules[self._trigger])

    def deactivate(self) -> None:
        """Stop waiting for the import of the module `trigger`, and end this lifecycle's work. A second call retries
        the steps that failed."""
        with self.mutex.lock:
            hooks.remove_hook(self._trigger, self._triggered)
            self.phase = Phase.OFF
            if self.work is not None:
                self.work.end()

    def _triggered(self, module: ModuleType) -> None:
        entered = self._inside[self._trigger]
        # Beginning imports other modules, such as torch_npu, which may lead back here.
        if entered.locked():
            return
        with entered:
            try:
                self._begin()
            except Exception as error:
                self._failed(error)

    def _begin(self) -> None:
        # Not under the mutex: another thread may be importing the same modules while it waits for the mutex.
        work = self.work or self._make(self.mutex)
        if work is None:
            return
        with self.mutex.lock:
            if self.phase is Phase.OFF:
                return
            self.work = self.work or work
            self.phase = Phase.BEGINNING
            try:
                self.work.begin()
                self.phase = Phase.LIVE
            except BaseException:
                self.phase = Phase.WAITING
                raise

    def _forked_midway(self) -> None:
        if self.work is not None:
            self.work.abandon()
