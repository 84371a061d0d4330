"""A lock for what must not be half done in the child of a fork.

A fork copies what every thread has done so far, and none of the other threads. With a plain lock the child would find
it held for ever, or, if it were made anew, find the work of another thread half done. So a fork waits until no other
thread holds this lock. It does not wait for ever: the thread that holds it may itself wait for something that the
forking thread has, such as the import of a module whose code forks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

__all__ = ["Mutex"]


class Mutex:
    """A re-entrant lock that is free in the child of a fork, with what it guards whole."""

    seconds = 10.0
    """How long a fork waits for another thread. Nothing that is done under the lock takes as long."""

    def __init__(self, broken: Callable[[], None]) -> None:
        """`broken` is called in a child whose parent waited too long: what the lock guards may be half done there."""
        self._broken = broken
        self._lock = threading.RLock()
        # Of the forking thread: whether it got the lock.
        self._fork = threading.local()
        _watch(weakref.ref(self))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait for the thread that holds the lock, if it is another one."""
        self._fork.got = self._lock.acquire(timeout=self.seconds)

    def after_fork(self) -> None:
        """Let go in the parent."""
        if self._fork.got:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Let go in the child, or say that another thread was not done."""
        if self._fork.got:
            self._lock.release()
            return
        self._lock = threading.RLock()
        self._broken()


def _watch(mutex: weakref.ref[Mutex]) -> None:
    """Call a mutex at each fork, for as long as it exists: Python never forgets what is registered for forks."""

    def call(act: Callable[[Mutex], None]) -> None:
        alive = mutex()
        if alive is not None:
            act(alive)

    os.register_at_fork(
        before=lambda: call(Mutex.before_fork),
        after_in_parent=lambda: call(Mutex.after_fork),
        after_in_child=lambda: call(Mutex.after_fork_in_child),
    )
