"""One applied patch: what it wrote, whether it is in force, and how all of it is put back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..patch import Patch
from .slot import Slot

__all__ = ["Binding", "Rollback", "Write"]

# How often a write is tried again if an interruption, such as Ctrl-C, comes in the middle of putting it back.
_TRIES = 3

# Patches that were taken back while somebody else's lay over them, by the identity of what we had put there: if that
# somebody puts "what was there before" back, it would be our patch. Values are kept, so that no identity is reused.
_taken_back: dict[int, tuple[object, object]] = {}


@dataclass(frozen=True, slots=True)
class Write:
    """One slot that was written."""

    slot: Slot
    before: object
    after: object

    def in_force(self) -> bool:
        """Whether the slot holds what was written, by identity."""
        return self.slot.read() is self.after

    def undo(self) -> bool:
        """Put back what was there. False if somebody else has overwritten the slot since: then it is left."""
        current = self.slot.read()
        if current is self.after:
            self.slot.write(_original(self.before))
        elif current is not self.before:
            _taken_back[id(self.after)] = (self.after, self.before)
            return False
        return True


@dataclass(slots=True)
class Rollback:
    """What came of putting back."""

    overwritten: list[Slot] = field(default_factory=list)
    """Slots that somebody else has overwritten since; they are left."""
    failed: list[tuple[Write, BaseException]] = field(default_factory=list)
    """Writes that could not be put back: these slots are ours still."""


@dataclass(slots=True)
class Binding:
    """One applied patch."""

    patch: Patch
    slot: Slot
    before: object
    after: object
    writes: list[Write] = field(default_factory=list)
    """What was written, in order: the target, and the copies of it that were rebound with it."""
    unreached: tuple[str, ...] = ()
    """Copies of the target that are left as they are, since they cannot be rebound safely."""
    earlier: Binding | None = None
    """The binding of the same patch that this one has taken over from: of a module that was imported again, or of a
    target that somebody overwrote."""

    def in_force(self) -> bool:
        """Whether the target is ours, by identity."""
        return self.slot.read() is self.after

    def write(self, slots: Iterable[Slot]) -> None:
        """Write to `slots`, the target's own one or those of its copies."""
        for slot in slots:
            # Noted first: an interruption between the two leaves a slot that reads as before, which undo understands.
            self.writes.append(Write(slot, slot.read(), self.after))
            slot.write(self.after)

    def take_over(self, slots: Iterable[Slot]) -> None:
        """Write to `slots`, which hold what an earlier binding put there: to put them back, `before` goes there."""
        for slot in slots:
            self.writes.append(Write(slot, self.before, self.after))
            slot.write(self.after)

    def restore(self) -> Rollback:
        """Put everything back, each slot by itself. It can be repeated: what failed is kept and tried again."""
        rollback = Rollback()
        kept: list[Write] = []
        while self.writes:
            write = self.writes.pop()
            failure = _undo(write, rollback)
            if failure is not None:
                rollback.failed.append((write, failure))
                kept.append(write)
        self.writes = kept[::-1]
        if self.earlier is not None:
            beneath = self.earlier.restore()
            rollback.overwritten += beneath.overwritten
            rollback.failed += beneath.failed
        return rollback


def _undo(write: Write, rollback: Rollback) -> BaseException | None:
    failure: BaseException | None = None
    for _ in range(_TRIES):
        try:
            if not write.undo():
                rollback.overwritten.append(write.slot)
            return None
        except BaseException as error:
            failure = error
    return failure


def _original(value: object) -> object:
    while id(value) in _taken_back:
        value = _taken_back[id(value)][1]
    return value
