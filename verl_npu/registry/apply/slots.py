"""Slots: keys of namespaces that a patch writes, checks, and restores. The copies of the target have slots, too.

If another module has a copy of the target (`from x import y`), the copy is rebound. A copy in a class body, a
container, a partial, or a default cannot be rebound safely. It keeps upstream's object, and the status lists it.
Namespaces are read only through `vars()`, so that no lazy module is loaded and no `__getattr__` is called.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from ...errors import ApplyError
from ..patch import Action, Patch
from ..source.tree import SourceTree, Target

Owner = types.ModuleType | type


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING: Final = _Missing()
"""The value of a slot whose key is missing, or is only inherited."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A key in a module's or a class's own namespace."""

    owner: Owner
    key: str

    def read(self) -> object:
        """Return the unbound value in the owner's own namespace. Return MISSING if the key is missing or only
        inherited."""
        return read_namespace(self.owner).get(self.key, MISSING)

    def write(self, value: object) -> None:
        """Set the key, or delete it if `value` is MISSING."""
        if isinstance(self.owner, types.ModuleType):
            # Bypass any __setattr__ of a lazy module, because this very key must be written.
            contents = namespace(self.owner)
            if value is MISSING:
                contents.pop(self.key, None)
            else:
                contents[self.key] = value
        elif value is MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, value)

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.key}"


def namespace(module: types.ModuleType) -> MutableMapping[str, object]:
    """Return a module's own namespace. A lazy module is not loaded."""
    return cast(MutableMapping[str, object], object.__getattribute__(module, "__dict__"))


def read_namespace(owner: Owner) -> types.MappingProxyType[str, object] | MutableMapping[str, object]:
    """Return the namespace of a module or class, without inherited names. A lazy module is not loaded."""
    if isinstance(owner, types.ModuleType):
        return namespace(owner)
    return cast("types.MappingProxyType[str, object]", type.__getattribute__(owner, "__dict__"))


def find_slot(module: types.ModuleType, target: Target) -> Slot:
    """Return the slot (a namespace and a name) that holds `target`. Raises ApplyError if the target's class does not
    exist."""
    owner: Owner = module
    for part in filter(None, target.owner.split(".")):
        inner = read_namespace(owner).get(part, MISSING)
        if not isinstance(inner, type):
            raise ApplyError(
                subject=str(target),
                expected=f"a class {part} in {getattr(owner, '__name__', owner)}",
                found=f"{inner!r}"[:200],
                fix="find out which package replaced the class defined in the source",
            )
        owner = inner
    return Slot(owner, target.name)


def callee(value: object) -> FunctionType:
    """Return the function inside a descriptor. Return any other value unchanged."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.cached_property):
        value = value.func
    return value  # type: ignore[return-value]  # callers notice a value without code


def layers(value: object) -> Iterator[object]:
    """Yield a callable and everything that it wraps, the outermost first."""
    seen: set[int] = set()
    while value is not None and id(value) not in seen and len(seen) < _DEEPEST:
        seen.add(id(value))
        yield value
        value = getattr(callee(value), "__wrapped__", None)


# Some objects make a new object for every name that they are asked for.
_DEEPEST = 100


def slot_of(place: str) -> Slot | None:
    """Return the slot of a full dotted name in the loaded modules, or None if its module or class is not loaded."""
    parts = place.split(".")
    for length in range(len(parts) - 1, 0, -1):
        owner: object = sys.modules.get(".".join(parts[:length]))
        if isinstance(owner, types.ModuleType):
            for name in parts[length:-1]:
                owner = read_namespace(owner).get(name) if isinstance(owner, types.ModuleType | type) else None
            return Slot(owner, parts[-1]) if isinstance(owner, types.ModuleType | type) else None
    return None


# How often undoing a write is tried if an interruption, such as Ctrl-C, comes in the middle.
_TRIES = 3


# Patches that were undone while a wrapper of other code covered them, by the id of the object that the patch had
# written. If that code restores "the original", it restores the patch. The objects are kept so that no id is reused.
_undone: dict[int, tuple[object, object]] = {}


@dataclass(frozen=True, slots=True)
class Write:
    """One write to a slot."""

    slot: Slot
    before: object
    after: object

    def in_force(self) -> bool:
        """Return whether the slot still holds the object that the patch wrote."""
        return self.slot.read() is self.after

    def within(self) -> str:
        """If the slot now holds another wrapper around the object that the patch wrote, return the wrapper's name.
        Otherwise, return an empty string."""
        current = self.slot.read()
        found = layers(callee(current))
        around = current is not self.after and any(
            layer is self.after or layer is callee(self.after) for layer in found
        )
        return _named(callee(current)) if around else ""

    def undo(self) -> bool:
        """Restore the slot. If other code has written to it since, leave it alone and return False."""
        current = self.slot.read()
        if current is self.after:
            self.slot.write(_original(self.before))
        elif current is not self.before:
            _undone[id(self.after)] = (self.after, self.before)
            return False
        return True


def _named(wrapper: object) -> str:
    # functools.wraps renames a wrapper, but its code keeps the own name. A wrapt wrapper holds its function.
    made = getattr(wrapper, "_self_wrapper", wrapper)
    if type(made) is FunctionType:
        return f"{made.__globals__.get('__name__')}.{made.__code__.co_name}"
    return f"{type(made).__module__}.{type(made).__qualname__}"


def _call_original(*args: object, _original: Callable[..., object], **kwargs: object) -> object:
    return _original(*args, **kwargs)


def _call_wrapped(wrapped: Callable[..., object], instance: object, args: Any, kwargs: Any) -> object:
    return wrapped(*args, **kwargs)


def pass_through(made: object, original: object) -> bool:
    """Make `made`, a result of `replacement.build`, call the original from now on, for code that still refers to
    `made`. Return False if `made` has no code object.

    The code object of `made` is replaced, because a check of whether the patch is in force would slow down each call.
    """
    function, before = callee(made), callee(original)
    call = getattr(function, "_self_wrapper", None)
    if type(call) is FunctionType:
        call.__code__ = _call_wrapped.__code__.replace(co_freevars=call.__code__.co_freevars)
        return True
    if type(function) is not FunctionType or not callable(before):
        return False
    # Other threads may be calling it, so keep what the old code needs until that code is gone.
    function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "_original": before}
    function.__code__ = _call_original.__code__.replace(co_freevars=function.__code__.co_freevars)
    function.__defaults__ = None
    function.__wrapped__ = before  # type: ignore[attr-defined]
    return True


@dataclass(slots=True)
class Rollback:
    """The result of undoing writes."""

    overwritten: list[str] = field(default_factory=list)
    """Slots that other code has overwritten since. They are left alone."""
    within: list[str] = field(default_factory=list)
    """Slots where other code has put a wrapper around the patch's object, with the wrapper's name. The patch's object
    stays in these slots."""
    failed: list[tuple[Write, BaseException]] = field(default_factory=list)
    """Writes that could not be undone. Their slots are still patched."""

    def undo(self, write: Write) -> None:
        """Undo one write, and record the result."""
        failures: list[BaseException] = []
        while len(failures) < _TRIES:
            try:
                if not write.undo():
                    within = write.within()
                    (self.within if within else self.overwritten).append(
                        f"{write.slot} within {within}" if within else str(write.slot)
                    )
                return
            except BaseException as error:
                failures.append(error)
        self.failed.append((write, failures[-1]))


@dataclass(slots=True)
class Binding:
    """One patch that was applied in this process."""

    patch: Patch
    slot: Slot
    before: object
    after: object
    writes: list[Write] = field(default_factory=list)
    """The writes, in order: first to the target, then to its copies."""
    unreached: tuple[str, ...] = ()
    """Copies of the target that cannot be rebound safely. They are left alone."""
    over: str = ""
    """The upstream module that had overwritten the target before this binding overwrote it again."""
    earlier: Binding | None = None
    """The earlier binding of the same patch, if the module was imported again or the target was overwritten."""

    def in_force(self) -> bool:
        """Return whether the target holds the patch's object."""
        return self.slot.read() is self.after

    def within(self) -> str:
        """If the target now holds another wrapper around the patch's object, return the wrapper's name. Otherwise,
        return an empty string."""
        return Write(self.slot, self.before, self.after).within()

    def remarks(self) -> Iterator[str]:
        """Yield remarks about an applied patch."""
        if self.unreached:
            shown = ", ".join(self.unreached[:3]) + (" and others" if len(self.unreached) > 3 else "")
            yield f"these copies stay upstream's: {shown}"
        if self.over:
            yield f"over the assignment by {self.over}"
        if within := self.within():
            yield f"within {within}"

    def write(self, slots: Iterable[Slot]) -> None:
        """Write the patch's object into `slots`: the target's own slot, or the slots of other names that refer to the
        target."""
        for slot in slots:
            # Record the write first: if it is interrupted in between, the slot reads as before, and undo handles that.
            self.writes.append(Write(slot, slot.read(), self.after))
            slot.write(self.after)

    def replace_earlier(self) -> None:
        """Write the patch's new object to all copies of the target that still hold the patch's earlier object. Undoing
        these writes restores the original, `before`."""
        if self.earlier is None:
            return
        for slot in [w.slot for w in self.earlier.writes if w.in_force() and w.slot != self.earlier.slot]:
            self.writes.append(Write(slot, self.before, self.after))
            slot.write(self.after)
        if self.earlier.slot == self.slot:
            # The module was executed again in its old namespace, so the old binding's original is gone.
            self.earlier = self.earlier.earlier

    def restore(self) -> Rollback:
        """Undo each write of the patch separately. A second call retries the writes that could not be undone.

        After all writes have been undone, the patch's object forwards calls to upstream's function, for code that
        still holds the object.
        """
        rollback = Rollback()
        for write in reversed(self.writes):
            rollback.undo(write)
        self.writes = [write for write, _ in reversed(rollback.failed)]
        made_for_it = (
            self.patch.action in (Action.REPLACE, Action.WRAP) and self.patch.implementation is not self.after
        )
        if self.writes or not made_for_it or not pass_through(self.after, self.before):
            rollback.within = [f"{where}, and stays in force" for where in rollback.within]
        if self.earlier is not None:
            beneath = self.earlier.restore()
            rollback.overwritten += beneath.overwritten
            rollback.within += beneath.within
            rollback.failed += beneath.failed
        return rollback


def _original(value: object) -> object:
    while id(value) in _undone:
        value = _undone[id(value)][1]
    return value


def all_modules() -> Iterator[ModuleType]:
    """Yield the modules in `sys.modules`. Entries that are not modules are skipped without reading their
    attributes."""
    return (module for module in tuple(sys.modules.values()) if issubclass(type(module), ModuleType))


def holders(modules: Mapping[str, ModuleType], executed: Mapping[str, ModuleType]) -> list[ModuleType]:
    """Some objects in `modules` are about to be replaced. Return all modules that may hold references to these
    objects.

    The modules in `executed` have just been executed. Only a few modules can hold references to the objects of an
    executed module: the module itself, modules that were imported while it was executed, and modules that import it
    and are still being executed. Searching all modules would take milliseconds for each patched module.
    """
    fresh = list(executed.values())
    if len(executed) != len(modules) or not all(getattr(m.__spec__, "_initializing", False) for m in fresh):
        return list(all_modules())
    found = {id(other): other for module in fresh for other in (*_being_executed(), *_imported_since(module))}
    return list(found.values())


def _imported_since(module: ModuleType) -> Iterator[ModuleType]:
    # The newest modules come last in sys.modules.
    for other in reversed(tuple(sys.modules.values())):
        if issubclass(type(other), ModuleType):
            yield other
        if other is module:
            break


def _being_executed() -> Iterator[ModuleType]:
    """Yield the modules whose own code is being executed in some thread."""
    for frame in tuple(sys._current_frames().values()):
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_name == "<module>":
                module = sys.modules.get(current.f_globals.get("__name__", ""))
                if module is not None and issubclass(type(module), ModuleType):
                    yield module
            current = current.f_back


def find_copies(bindings: Sequence[Binding], modules: Iterable[ModuleType], tree: SourceTree) -> dict[str, list[Slot]]:
    """Find the names in `modules` that refer to objects that `bindings` will replace. Return the slots of these names,
    keyed by the id of the patch.

    References that cannot be rebound, such as items of a list, are added to the binding's `unreached`. Only the
    program itself and the upstreams' modules are searched for references of this kind. All bindings share one search
    of the modules.
    """
    objects = {id(b.before): b for b in bindings if b.patch.action is not Action.SET and callable(b.before)}
    values = [b for b in bindings if b.patch.action is Action.SET]
    found: dict[str, list[Slot]] = {binding.patch.id: [] for binding in bindings}
    left: dict[str, list[str]] = {binding.patch.id: [] for binding in bindings}
    seen: set[int] = set()
    for module in modules:
        contents = namespace(module)
        for binding, slot in _module_copies(module, objects):
            found[binding.patch.id].append(slot)
        if objects and _is_upstreams(contents, tree):
            holders = [(key, value) for key, value in tuple(contents.items()) if _CAN_HOLD[type(value)]]
            for key, value in holders:
                if id(value) not in seen:
                    seen.add(id(value))
                    for binding, where in _inside(value, objects):
                        left[binding.patch.id].append(f"{contents.get('__name__')}.{key}{where}")
        for binding in values:
            if _copies_value(binding, module, tree):
                found[binding.patch.id].append(Slot(module, binding.patch.target.name))
    for binding in bindings:
        binding.unreached = tuple(left[binding.patch.id])
    return found


def _module_copies(module: ModuleType, objects: Mapping[int, Binding]) -> Iterator[tuple[Binding, Slot]]:
    contents = namespace(module)
    if not _holds(contents.values(), objects):
        return
    for key, value in tuple(contents.items()):
        binding = objects.get(id(value))
        if binding is not None and not (module is binding.slot.owner and key == binding.slot.key):
            yield binding, Slot(module, key)


def _holds(values: Iterable[object], objects: Mapping[int, Binding]) -> bool:
    # There are hundreds of thousands of values, so let the interpreter run the loop.
    return not objects.keys().isdisjoint(map(id, tuple(values)))


def _copies_value(binding: Binding, module: ModuleType, tree: SourceTree) -> bool:
    # The identity of a value such as True proves nothing, so go by the imports in the module's source.
    target = binding.patch.target
    contents = namespace(module)
    return contents.get(target.name, MISSING) is binding.before and tree.imports_from(
        str(contents.get("__name__", "")), target.name, target.module
    )


_HOLDERS = frozenset({dict, list, tuple, functools.partial, FunctionType})


def _is_upstreams(contents: Mapping[str, object], tree: SourceTree) -> bool:
    name = str(contents.get("__name__", ""))
    return name == "__main__" or tree.covers(name.partition(".")[0])


class _Kinds(dict[type, bool]):
    """A cache that records whether objects of a type can hold other objects. It is used for tens of thousands of
    objects.

    Its key is the type, because isinstance would read the `__class__` of a lazy object and could load it.
    """

    def __missing__(self, kind: type) -> bool:
        self[kind] = answer = kind in _HOLDERS or issubclass(kind, type)
        return answer


_CAN_HOLD = _Kinds()


def is_filled(cell: CellType) -> bool:
    """Return whether a closure's cell has a value yet."""
    try:
        cell.cell_contents  # noqa: B018  # an empty cell raises
    except ValueError:
        return False
    return True


def _inside(value: object, objects: Mapping[int, Binding]) -> Iterator[tuple[Binding, str]]:
    """Yield the objects in `objects` that are inside `value`: as an entry, a class attribute, in a partial, a default,
    or a closure."""
    for where, item in _items(value, objects):
        binding = objects.get(id(item))
        if binding is not None and not (value is binding.slot.owner and where == f".{binding.slot.key}"):
            yield binding, where


def _items(value: object, objects: Mapping[int, Binding]) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"[{k!r}]", v) for k, v in tuple(value.items())] if _holds(value.values(), objects) else ()
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)] if _holds(value, objects) else ()
    if isinstance(value, type):
        return _attributes(value, objects)
    if isinstance(value, functools.partial):
        return [(" (partial)", item) for item in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, FunctionType):
        kept = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        cells = [(" (closure)", cell.cell_contents) for cell in value.__closure__ or () if is_filled(cell)]
        return [*((" (default)", item) for item in kept), *cells]
    return ()


def _attributes(owner: type, objects: Mapping[int, Binding]) -> Iterable[tuple[str, object]]:
    contents = read_namespace(owner)
    methods = [(k, cast(MethodType, v)) for k, v in contents.items() if type(v) in (staticmethod, classmethod)]
    inner = [(f".{key}", method.__func__) for key, method in methods]
    if not inner and not _holds(contents.values(), objects):
        return ()
    return [*inner, *((f".{key}", item) for key, item in contents.items())]
