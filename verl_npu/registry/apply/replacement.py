"""What takes the place of a target: made from the patch's implementation and from what is there, which is checked
first, since somebody may have replaced it before us."""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from ...errors import ApplyError
from ..patch import Action, Patch
from ..source.definition import Definition, Kind, fits
from ..source.tree import SourceTree, Target
from .slots import MISSING, Slot, callee, is_filled, layers, namespace, read_namespace


def clone(
    function: types.FunctionType,
    *,
    name: str = "",
    code: types.CodeType | None = None,
    namespace: dict[str, object] | None = None,
) -> types.FunctionType:
    """Return another function that does what `function` does, or what `code` says.

    It has the given name and looks up globals in the given namespace, or has those of `function`.
    """
    made = types.FunctionType(
        code or function.__code__,
        function.__globals__ if namespace is None else namespace,
        name or function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _functions(implementation: object) -> Iterator[types.FunctionType]:
    """Yield the function itself, or of a class the functions in its own body."""
    members = vars(implementation).values() if isinstance(implementation, type) else [implementation]
    for function in map(callee, members):
        if isinstance(function, types.FunctionType):
            yield function


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, and those inside it, look up among globals and builtins."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(inside) for inside in code.co_consts if isinstance(inside, types.CodeType)))


_DESCRIPTORS = {
    Kind.CLASS: type,
    Kind.PROPERTY: property,
    Kind.CACHED_PROPERTY: functools.cached_property,
    Kind.STATICMETHOD: staticmethod,
    Kind.CLASSMETHOD: classmethod,
}
_MAKE_MANAGERS = frozenset({"contextmanager", "asynccontextmanager"})
_TRANSPARENT = _MAKE_MANAGERS | {"property", "staticmethod", "classmethod", "cached_property", "setter"}
_MANAGER = contextlib.contextmanager(lambda: iter(())).__code__
_ASYNC_MANAGER = contextlib.asynccontextmanager(cast(Any, lambda: iter(()))).__code__


@dataclass(frozen=True, slots=True)
class Conventions:
    """What the decorators of some upstreams make of a function, which a target's own source does not tell."""

    transparent: frozenset[str] = frozenset()
    """Those that make a function, which calls the one that they were given."""
    registering: str = ""
    """The one of these that registers it, and leaves an attribute there: to register it again would undo that."""
    mark: str = ""
    """That attribute."""
    remote: frozenset[str] = frozenset()
    """Those that make what lives in other processes, which no patch of this one would reach."""

    def marks(self, value: object) -> frozenset[str]:
        """Return the marks on an object, and what functools.singledispatch leaves: it calls what others put there."""
        return frozenset({self.mark, "dispatch", "registry"} & getattr(value, "__dict__", {}).keys())

    def registrations(self, value: object) -> int:
        """Return how often a function was registered: functools.wraps passes a mark on, and registering makes one."""
        found = [getattr(layer, "__dict__", {}).get(self.mark) for layer in layers(value)]
        return len({id(mark) for mark in found if mark is not None})


def check_live(patch: Patch, slot: Slot, tree: SourceTree, module: types.ModuleType, known: Conventions) -> None:
    """Raise ApplyError if the live object is not the one that the source defines.

    What is judged is the object itself. It may be a wrapper of what the source defines, if the source decorates that,
    or if the wrapper is of the same kind and takes what the source takes.
    """
    value = slot.read()
    if patch.action is Action.ADD:
        if value is not MISSING:
            raise _unexpected(patch, "nothing there", f"{value!r}")
        return
    if value is MISSING:
        raise _unexpected(patch, f"{slot.key} in the own namespace of {slot.owner!r}", "nothing there")
    plain = type(value) is types.FunctionType or isinstance(value, type)
    if plain and _is_where_the_source_has_it(value, patch, module):
        # The usual case: no source need be parsed for it.
        return
    definition = tree.definition(patch.target)
    if definition is not None and definition.kind is Kind.IMPORTED and patch.action is not Action.SET:
        if not any(_is_imported(value, origin, known) for origin in tree.origins(patch.target)):
            raise _unexpected(patch, f"what {module.__file__} imports", f"{value!r}")
        return
    if definition is None or definition.kind in (Kind.IMPORTED, Kind.ASSIGNED):
        # What such a name holds is not written there: the fingerprint of the statement has to do.
        return
    expected = f"the {definition.kind} defined in {module.__file__}"
    if not _makes(definition, value, known):
        raise _unexpected(patch, expected, f"{value!r}")
    stack = list(layers(callee(value)))
    if _is_where_the_source_has_it(stack[0], patch, module):
        return
    # What upstream's decorators made comes first from within; what is around that is somebody else's.
    own = (n for n, layer in enumerate(stack) if not definition.plain and _is_upstreams(layer, tree))
    transparent = (_TRANSPARENT | known.transparent).issuperset(definition.decorators)
    strange = next(own, len(stack) - 1) if transparent else 0
    for outer, under in pairwise(stack[: strange + 1]):
        if not _stands_for(outer, under, definition.signature, known):
            raise _unexpected(patch, expected, f"around it, what is another kind or called otherwise: {value!r}")
    function = stack[-1]
    enclosed = [] if definition.plain else [inspect.unwrap(each) for each in _enclosed(function)]
    if any(_is_where_the_source_has_it(each, patch, module) for each in (function, *enclosed)):
        return
    code = getattr(function, "__code__", None)
    # What a decorator made of it may have no code of its own; then the source's fingerprint has to do.
    if definition.plain or code is not None or known.transparent.issuperset(definition.decorators):
        where = f"{value!r}" if code is None else f"{code.co_name} from {code.co_filename}"
        raise _unexpected(patch, expected, where)


def _makes(definition: Definition, value: object, known: Conventions) -> bool:
    """Whether an object is of the kind that the source makes, as far as the source tells."""
    function = callee(value)
    # A singledispatchmethod is bound before it is called.
    if not callable(function) and not hasattr(function, "__get__"):
        return False
    wanted = _DESCRIPTORS.get(definition.kind)
    if wanted is not None:
        return isinstance(value, wanted)
    if known.remote.intersection(definition.decorators) or isinstance(value, tuple(_DESCRIPTORS.values())):
        return False
    # A proxy such as wrapt's gives itself out for what it wraps, and is no second one.
    plain = [layer for layer in layers(function) if type(layer) is types.FunctionType]
    managers = [layer for layer in plain if _live_kind(layer) is Kind.CONTEXT_MANAGER]
    if len(managers) != len(_MAKE_MANAGERS.intersection(definition.decorators)):
        return False
    registered = definition.decorators.count(known.registering)
    transparent = (_TRANSPARENT | known.transparent).issuperset(definition.decorators)
    if transparent and known.registrations(function) > registered:
        return False
    if any(known.mark in known.marks(each) for each in _enclosed(function)) and known.mark not in known.marks(
        function
    ):
        return False
    # An object that gives itself out for a function, as wrapt's do, passes on what it does not do itself.
    return isinstance(function, types.FunctionType) or not known.transparent.issuperset(definition.decorators)


def _is_upstreams(layer: object, tree: SourceTree) -> bool:
    """Whether a decorator of an upstream, of torch or of contextlib made an object, or it is the function itself."""
    file = getattr(getattr(layer, "__code__", None), "co_filename", "")
    homes = (sys.modules.get(name) for name in (*tree.packages, "torch"))
    folders = (folder for home in homes if home is not None for folder in getattr(home, "__path__", ()))
    return file == contextlib.__file__ or any(file.startswith(f"{folder}{os.sep}") for folder in folders)


def _is_imported(value: object, origin: Target, known: Conventions) -> bool:
    """Whether an object is what a module has under a name, or wraps it and stands for it."""
    holder = sys.modules.get(origin.module)
    held = namespace(holder).get(origin.name, MISSING) if isinstance(holder, types.ModuleType) else MISSING
    if held is MISSING or held is value:
        return True
    stack, origins = list(layers(value)), list(layers(held))
    # It may be patched where it comes from since, too. None has no layer.
    if not stack or not origins or stack[-1] is not origins[-1] or not isinstance(stack[-1], types.FunctionType):
        return False
    taken = _bare_signature(stack[-1])
    return all(_stands_for(one, stack[-1], taken, known) for one in stack[:-1])


def _stands_for(wrapper: object, function: object, taken: str, known: Conventions) -> bool:
    """Whether a wrapper of a function is of its kind, and takes what it takes."""
    kind, wrapped = _live_kind(wrapper), _live_kind(function)
    # What passes a context manager on need not look like one.
    if kind is not wrapped and (kind, wrapped) != (Kind.FUNCTION, Kind.CONTEXT_MANAGER):
        return False
    if known.marks(wrapper) != known.marks(function):
        return False
    if type(wrapper) is not types.FunctionType:
        # wrapt's proxies give themselves out for functions, and take whatever these take.
        return isinstance(wrapper, types.FunctionType)
    kinds = {parameter.kind for parameter in _own_parameters(wrapper)}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return True
    return fits(_bare_signature(wrapper), taken)


def _bare_signature(function: types.FunctionType) -> str:
    """Return the parameters of a function as `definition.signature` writes them, each default as None."""
    parameters = _own_parameters(function)
    bare = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters]
    return str(inspect.Signature(bare))


def _own_parameters(function: types.FunctionType) -> list[inspect.Parameter]:
    # Of a bare copy: functools.wraps also copies a __signature__ that others leave on a function.
    return list(inspect.signature(clone(function)).parameters.values())


def _live_kind(value: object) -> Kind:
    """Return the kind of an object that can be called, whatever it unwraps to."""
    if getattr(value, "__code__", None) in (_MANAGER, _ASYNC_MANAGER):
        return Kind.CONTEXT_MANAGER
    if inspect.isasyncgenfunction(value):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(value):
        return Kind.COROUTINE
    return Kind.GENERATOR if inspect.isgeneratorfunction(value) else Kind.FUNCTION


def _is_where_the_source_has_it(value: object, patch: Patch, module: types.ModuleType) -> bool:
    if isinstance(value, type):
        # A module that `python -m` runs is called __main__.
        return (
            value.__module__ in (patch.target.module, module.__name__) and value.__qualname__ == patch.target.qualname
        )
    code = getattr(value, "__code__", None)
    if type(value) is not types.FunctionType or code is None:
        return False
    # A closure of the same name in the same file is not the target; before 3.11 code does not keep its full name.
    name = getattr(code, "co_qualname", value.__qualname__)
    return (code.co_filename, name) == (module.__file__, patch.target.qualname)


def _enclosed(function: object) -> list[types.FunctionType]:
    """Return the functions that a decorator's closure holds: one without functools.wraps tells in no other way."""
    found: list[types.FunctionType] = []
    waiting = [function]
    while waiting:
        for cell in getattr(waiting.pop(), "__closure__", None) or ():
            held = cell.cell_contents if is_filled(cell) else None
            if isinstance(held, types.FunctionType) and held not in found:
                found.append(held)
                waiting.append(inspect.unwrap(held))
    return found


def comes_from(value: object, module: types.ModuleType) -> bool:
    """Whether a function, method or class was defined in `module`."""
    return getattr(callee(value), "__module__", None) == module.__name__


def belongs(value: object, expression: str, module: types.ModuleType) -> bool:
    """Whether a value is what `expression` names in `module`, by identity, or a function or class made in `module`."""
    if value is MISSING:
        return False
    named: object = module
    for part in expression.split("."):
        named = read_namespace(named).get(part, MISSING) if isinstance(named, types.ModuleType | type) else MISSING
    # A wrapper that was made by functools.wraps has the name of what it wraps, but its own globals.
    own = getattr(callee(value), "__globals__", None) is namespace(module)
    return own or (named is not MISSING and (named is value or named is callee(value))) or comes_from(value, module)


Function = Callable[..., object]


def build(patch: Patch, original: object, slot: Slot, leave_out: str = "") -> object:
    """Make what takes the target's place: `original` is what its namespace holds, a descriptor as it is.

    `leave_out` is the variable that leaves features out, for an error of a call.

    Raises ApplyError for a kind of object that cannot be wrapped or replaced, or an implementation with global names
    that do not resolve.
    """
    implementation = patch.implementation
    for ours in _functions(implementation):
        names = sorted(_global_names(ours.__code__) - ours.__globals__.keys() - vars(builtins).keys())
        if names:
            expected = "an implementation whose global names all resolve"
            found = f"unresolved in {ours.__qualname__}: {', '.join(names)}"
            raise _error(patch, expected, found, "import or define them in the module of the implementation")
    if patch.action is Action.SET:
        if slot.key in getattr(slot.owner, "__dataclass_fields__", ()):
            # The default is in __init__ as well, which would go on giving the old one.
            raise _unfit(patch, "a value that nothing has copied", "the default of a dataclass's field")
        return implementation(original)
    if patch.action is Action.ADD or not isinstance(implementation, types.FunctionType):
        return implementation
    function: Any = callee(original)
    if function is None:
        raise _unfit(patch, "a property with a getter", "one without")
    if not callable(function) and not hasattr(function, "__get__"):
        raise _unfit(patch, "something that can be called", f"{function!r}")
    made = (
        _replaced(implementation, function) if patch.action is Action.REPLACE else _wrapped(patch, function, leave_out)
    )
    if isinstance(made, types.FunctionType):
        # An imported function has the name of where it comes from, under which pickle would find the original.
        made.__module__, made.__qualname__ = patch.target.module, patch.target.qualname
    if isinstance(original, staticmethod | classmethod):
        return type(original)(made)
    if isinstance(original, property):
        return property(made, original.fset, original.fdel, original.__doc__)
    if isinstance(original, functools.cached_property):
        cached = functools.cached_property(made)
        # The class statement would have told it its name, under which it keeps its value.
        cached.__set_name__(cast(type, slot.owner), slot.key)
        return cached
    return made


def _replaced(implementation: types.FunctionType, original: object) -> Function:
    # A copy, so that one implementation may serve several targets: each is found again under its own name, which is
    # what pickle by reference and Ray need, and keeps marks that upstream's decorators left on the function.
    made = clone(implementation)
    functools.update_wrapper(made, cast(Function, original))
    del made.__wrapped__  # type: ignore[attr-defined]  # update_wrapper has just set it
    return made


@dataclass(frozen=True, slots=True)
class _Wrapping:
    """An implementation that is called with the original, and what it has parameters for after that."""

    patch: Patch
    leave_out: str
    most: int
    """How many arguments without a name."""
    own: tuple[str, ...]
    """The names of those."""
    names: frozenset[str]
    any_name: bool

    @classmethod
    def of(cls, patch: Patch, leave_out: str) -> _Wrapping:
        first, *parameters = inspect.signature(patch.implementation).parameters.values()
        kinds = {parameter.kind for parameter in (first, *parameters)}
        own = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        most = sys.maxsize if inspect.Parameter.VAR_POSITIONAL in kinds else len(own)
        return cls(patch, leave_out, most, own, names, inspect.Parameter.VAR_KEYWORD in kinds)

    def pass_on(
        self, original: object, called: Function, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Call the implementation, and pass on to the original what it has no parameter for.

        An upstream may have added a parameter that need not be given. Whoever gives it all the same gets an ApplyError
        if the implementation does without the original: it would be lost.

        Args:
            called: what the implementation is to call: the original, or a method of it without the instance.
        """
        if len(args) <= self.most and (self.any_name or kwargs.keys() <= self.names):
            return self.patch.implementation(called, *args, **kwargs)
        unknown = {name: kwargs.pop(name) for name in tuple(kwargs) if not self.any_name and name not in self.names}
        names = list(inspect.signature(cast(Function, original)).parameters)
        # What has another name here is what stands in the same place.
        kwargs |= {ours: unknown.pop(name) for name, ours in zip(names, self.own, strict=False) if name in unknown}
        # By name: the implementation may call the original with fewer in front of them.
        unknown |= dict(zip(names[self.most :], args[self.most :], strict=False))
        args = args[: self.most]
        if not unknown:
            return self.patch.implementation(called, *args, **kwargs)
        calls: list[object] = []

        def informed(*given: object, **options: object) -> object:
            calls.append(called)
            return called(*given, **unknown, **options)

        def check() -> None:
            if not calls:
                expected = "arguments that it knows, where it does upstream's work itself"
                fix = f"leave the feature out with {self.leave_out}={self.patch.feature}, or call it without that"
                raise _error(self.patch, expected, ", ".join(unknown), fix)

        async def awaited(made: Awaitable[object]) -> object:
            result = await made
            check()
            return result

        made = self.patch.implementation(informed, *args, **kwargs)
        if inspect.iscoroutine(made):
            return awaited(made)
        if not inspect.isgenerator(made):
            check()
        return made


def _wrapped(patch: Patch, original: Function, leave_out: str) -> Function:
    wrapping = _Wrapping.of(patch, leave_out)
    implementation: Callable[..., Any] = patch.implementation
    plain = isinstance(original, types.FunctionType)
    if not plain or inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original):
        return _proxied(wrapping, original)
    # A plain function stays one: Ray pickles it by name, which a proxy object would not survive. What is asked in each
    # call is asked here, and not in a function of its own, which would cost more than the question.
    most, names, any_name = wrapping.most, wrapping.names, wrapping.any_name
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapper(*args: object, **kwargs: object) -> object:
            if len(args) <= most and (not kwargs or any_name or kwargs.keys() <= names):
                return await implementation(original, *args, **kwargs)
            return await cast(Awaitable[object], wrapping.pass_on(original, original, args, kwargs))
    else:

        @functools.wraps(original)
        def wrapper(*args: object, **kwargs: object) -> object:
            if len(args) <= most and (not kwargs or any_name or kwargs.keys() <= names):
                return implementation(original, *args, **kwargs)
            return wrapping.pass_on(original, original, args, kwargs)

    return wrapper


def _proxied(wrapping: _Wrapping, original: object) -> Function:
    """Wrap what is no plain function, and keep all else that it can do (`cache_clear`, `register`, its kind)."""
    if isinstance(original, type):
        found = f"the class {original.__qualname__}: replace it instead"
        raise _unfit(wrapping.patch, "a function or method to wrap", found)
    # Imported here, since most processes wrap plain functions only.
    import wrapt

    def call(wrapped: Function, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        # A method arrives bound; implementations take `self` after the original, as they do for plain functions.
        if instance is None or inspect.isclass(instance):
            return wrapping.pass_on(original, wrapped, args, kwargs)

        def unbound(self: object, *args: object, **kwargs: object) -> object:
            return wrapped(*args, **kwargs)

        return wrapping.pass_on(original, unbound, (instance, *args), kwargs)

    return cast(Function, wrapt.FunctionWrapper(cast(Function, original), call))


def _error(patch: Patch, expected: str, found: str, fix: str) -> ApplyError:
    return ApplyError(subject=f"patch {patch.id} of {patch.target}", expected=expected, found=found[:300], fix=fix)


def _unexpected(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "another package patches the same target: load only one of the two")


def _unfit(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "declare the patch for what upstream has there")
