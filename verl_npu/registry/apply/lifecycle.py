"""The lifecycle of a registry: one state for each process, and one hook on the module that everything waits for.

Like `hooks`, this module is part of every `import torch`, and imports almost nothing.
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
        """Work that can begin and end. A second call of either method does nothing, or resumes what was
        interrupted."""

        def begin(self) -> None: ...
        def end(self) -> None: ...
        def activity(self) -> RegistryActivity: ...

        def abandon(self) -> None:
            """Called in the child of a fork that interrupted another thread's work."""


class Phase(Enum):
    """The phase of a lifecycle."""

    OFF = "off"
    """No hook is placed, and nothing is patched."""
    WAITING = "waiting"
    """The hook is placed. The trigger is not imported yet, or the work that its import began did not finish."""
    BEGINNING = "beginning"
    """The trigger is imported: the patches are being judged, and applied to the modules that are loaded."""
    LIVE = "live"
    """The patches are judged, and each is applied when its module is imported."""


class Mutex:
    """A re-entrant lock that is free in the child of a fork, with the guarded data intact.

    A fork copies the work of every thread so far, but only the forking thread itself. With a plain lock, the child
    would find it held for ever; with a new lock, it would find another thread's work half done. So a fork waits until
    no other thread holds this lock. It does not wait for ever, because the holder may itself wait for something that
    the forking thread has, such as the import of a module whose code forks.
    """

    seconds = 10.0
    """How long a fork waits for another thread. No work under the lock takes as long."""

    def __init__(self, broken: Callable[[], None]) -> None:
        """Make the lock. If a fork waits too long, `broken` is called in the child, where work may be half done."""
        self.lock = threading.RLock()
        """For use in `with`: Python lets no interruption come between the guarded code and the release."""
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
    """Begins work when the module `trigger` is about to be imported, and ends it on request."""

    def __init__(
        self,
        trigger: str,
        make: Callable[[Mutex], Work | None],
        failed: Callable[[Exception], None] = _raise,
    ) -> None:
        """`make` makes the work, or deactivates this lifecycle and returns None. `failed` raises or handles an
        error."""
        self.mutex = Mutex(self._forked_midway)
        self.phase = Phase.OFF
        self.work: Work | None = None
        self._trigger = trigger
        self._make = make
        self._failed = failed
        self._inside = hooks.Inside()

    @property
    def active(self) -> bool:
        """Whether it is activated."""
        return self.phase is not Phase.OFF

    def activate(self) -> None:
        """Wait for the trigger, or begin at once if it is loaded. Interrupted work begins again."""
        with self.mutex.lock:
            hooks.add_hook(self._trigger, self._triggered, before=True)
            if self.phase is Phase.OFF:
                self.phase = Phase.WAITING
        if self._trigger in sys.modules and self.phase is not Phase.LIVE:
            self._triggered(sys.modules[self._trigger])

    def deactivate(self) -> None:
        """End the work. Calling it again retries what could not be ended."""
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
