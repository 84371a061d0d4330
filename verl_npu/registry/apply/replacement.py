"""Creation of the object that replaces a target, from the patch's implementation and the live object.

The live object is checked first, because other code may already have replaced it.
"""

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
    """Return a copy of `function`. It can have a different name, different code, or a different namespace for its
    globals."""
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
    """Yield `implementation` if it is a function. If it is a class, yield the functions in its own body."""
    members = vars(implementation).values() if isinstance(implementation, type) else [implementation]
    for function in map(callee, members):
        if isinstance(function, types.FunctionType):
            yield function


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, or code nested in it, looks up among globals and builtins."""
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
    """How the decorators of some upstreams change a function. A target's own source does not show this."""

    transparent: frozenset[str] = frozenset()
    """Decorators that return a function which calls the decorated function."""
    registering: str = ""
    """The one of these decorators that registers the function and sets an attribute on it. If the function were
    registered again, the second registration would replace the first."""
    mark: str = ""
    """The name of the attribute that it sets."""
    remote: frozenset[str] = frozenset()
    """Decorators that make an object live in another process, where no patch of this process reaches it."""

    def marks(self, value: object) -> frozenset[str]:
        """Return the attributes that mark an object as registered: the attribute that upstream's registration sets,
        and the attributes that functools.singledispatch sets on a generic function."""
        return frozenset({self.mark, "dispatch", "registry"} & getattr(value, "__dict__", {}).keys())

    def registrations(self, value: object) -> int:
        """Return how many times a function was registered. Each registration creates a new marker object. If
        functools.wraps copies a marker to a wrapper, the copy is the same object, and is counted only once."""
        found = [getattr(layer, "__dict__", {}).get(self.mark) for layer in layers(value)]
        return len({id(mark) for mark in found if mark is not None})


def check_live(patch: Patch, slot: Slot, tree: SourceTree, module: types.ModuleType, known: Conventions) -> None:
    """Raise ApplyError if the live object is not the object that the source defines.

    A wrapper around the source's object is also accepted if the source decorates the object, or if the wrapper has the
    same kind and takes the same arguments as the object.
    """
    value = slot.read()
    if patch.action is Action.ADD:
        if value is not MISSING:
            raise _unexpected(patch, "no such name", f"{value!r}")
        return
    if value is MISSING:
        raise _unexpected(patch, f"a definition of {slot.key} in {slot.owner!r} itself", "no such name")
    plain = type(value) is types.FunctionType or isinstance(value, type)
    if plain and _is_source_definition(value, patch, module):
        # In this usual case, no source needs to be parsed.
        return
    definition = tree.definition(patch.target)
    if definition is not None and definition.kind is Kind.IMPORTED and patch.action is not Action.SET:
        if not any(_is_imported(value, origin, known) for origin in tree.origins(patch.target)):
            raise _unexpected(patch, f"the object that {module.__file__} imports as {slot.key}", f"{value!r}")
        return
    if definition is None or definition.kind in (Kind.IMPORTED, Kind.ASSIGNED):
        # The source does not show the value of such a name, so the fingerprint of the statement must do.
        return
    expected = f"the {definition.kind} defined in {module.__file__}"
    if not _has_kind_of(definition, value, known):
        raise _unexpected(patch, expected, f"{value!r}")
    stack = list(layers(callee(value)))
    if _is_source_definition(stack[0], patch, module):
        return
    # The inner layers come from upstream's decorators; a layer around them is a stranger's.
    own = (n for n, layer in enumerate(stack) if not definition.plain and _is_upstreams(layer, tree))
    transparent = (_TRANSPARENT | known.transparent).issuperset(definition.decorators)
    strange = next(own, len(stack) - 1) if transparent else 0
    for outer, under in pairwise(stack[: strange + 1]):
        if not _stands_for(outer, under, definition.signature, known):
            raise _unexpected(
                patch, expected, f"a wrapper of a different kind or with a different signature: {value!r}"
            )
    function = stack[-1]
    enclosed = [] if definition.plain else [inspect.unwrap(each) for each in _enclosed(function)]
    if any(_is_source_definition(each, patch, module) for each in (function, *enclosed)):
        return
    code = getattr(function, "__code__", None)
    # The result of a decorator may have no code of its own; then the source's fingerprint must do.
    if definition.plain or code is not None or known.transparent.issuperset(definition.decorators):
        where = f"{value!r}" if code is None else f"{code.co_name} from {code.co_filename}"
        raise _unexpected(patch, expected, where)


def _has_kind_of(definition: Definition, value: object, known: Conventions) -> bool:
    """Return whether the source would make an object of the same kind as `value`, as far as the source shows it."""
    function = callee(value)
    # A singledispatchmethod is bound before it is called.
    if not callable(function) and not hasattr(function, "__get__"):
        return False
    wanted = _DESCRIPTORS.get(definition.kind)
    if wanted is not None:
        return isinstance(value, wanted)
    if known.remote.intersection(definition.decorators) or isinstance(value, tuple(_DESCRIPTORS.values())):
        return False
    # A proxy such as wrapt's pretends to be the function that it wraps, so it must not count as a second one.
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
    # An object that pretends to be a function, as wrapt's do, delegates everything else.
    return isinstance(function, types.FunctionType) or not known.transparent.issuperset(definition.decorators)


def _is_upstreams(layer: object, tree: SourceTree) -> bool:
    """Return whether an object was made by a decorator of an upstream, of torch, or of contextlib, or is upstream's
    own."""
    file = getattr(getattr(layer, "__code__", None), "co_filename", "")
    homes = (sys.modules.get(name) for name in (*tree.packages, "torch"))
    folders = (folder for home in homes if home is not None for folder in getattr(home, "__path__", ()))
    return file == contextlib.__file__ or any(file.startswith(f"{folder}{os.sep}") for folder in folders)


def _is_imported(value: object, origin: Target, known: Conventions) -> bool:
    """Return whether `value` is the object that the module of `origin` has under that name, or a wrapper that can
    replace it."""
    holder = sys.modules.get(origin.module)
    held = namespace(holder).get(origin.name, MISSING) if isinstance(holder, types.ModuleType) else MISSING
    if held is MISSING or held is value:
        return True
    stack, origins = list(layers(value)), list(layers(held))
    # The original may have been patched since, too. None has no layer.
    if not stack or not origins or stack[-1] is not origins[-1] or not isinstance(stack[-1], types.FunctionType):
        return False
    taken = _bare_signature(stack[-1])
    return all(_stands_for(one, stack[-1], taken, known) for one in stack[:-1])


def _stands_for(wrapper: object, function: object, taken: str, known: Conventions) -> bool:
    """Return whether a wrapper can replace its function: it is of the same kind and takes the same arguments."""
    kind, wrapped = _live_kind(wrapper), _live_kind(function)
    # A wrapper that passes a context manager on need not look like one.
    if kind is not wrapped and (kind, wrapped) != (Kind.FUNCTION, Kind.CONTEXT_MANAGER):
        return False
    if known.marks(wrapper) != known.marks(function):
        return False
    if type(wrapper) is not types.FunctionType:
        # wrapt's proxies pretend to be functions, and take the same arguments.
        return isinstance(wrapper, types.FunctionType)
    kinds = {parameter.kind for parameter in _own_parameters(wrapper)}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return True
    return fits(_bare_signature(wrapper), taken)


def _bare_signature(function: types.FunctionType) -> str:
    """Return the parameters of a function in the form of `definition.signature`, with None for each default."""
    parameters = _own_parameters(function)
    bare = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters]
    return str(inspect.Signature(bare))


def _own_parameters(function: types.FunctionType) -> list[inspect.Parameter]:
    # Of a bare copy, because functools.wraps also copies a __signature__ that others left on the function.
    return list(inspect.signature(clone(function)).parameters.values())


def _live_kind(value: object) -> Kind:
    """Return the kind of a callable. If the callable wraps a function, the kind of that function has no effect."""
    if getattr(value, "__code__", None) in (_MANAGER, _ASYNC_MANAGER):
        return Kind.CONTEXT_MANAGER
    if inspect.isasyncgenfunction(value):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(value):
        return Kind.COROUTINE
    return Kind.GENERATOR if inspect.isgeneratorfunction(value) else Kind.FUNCTION


def _is_source_definition(value: object, patch: Patch, module: types.ModuleType) -> bool:
    if isinstance(value, type):
        # `python -m` runs the module under the name __main__.
        return (
            value.__module__ in (patch.target.module, module.__name__) and value.__qualname__ == patch.target.qualname
        )
    code = getattr(value, "__code__", None)
    if type(value) is not types.FunctionType or code is None:
        return False
    # A closure with the same name in the same file is not the target; before 3.11, code has no qualified name.
    name = getattr(code, "co_qualname", value.__qualname__)
    return (code.co_filename, name) == (module.__file__, patch.target.qualname)


def _enclosed(function: object) -> list[types.FunctionType]:
    """Return the functions in a decorator's closure. If a decorator does not use functools.wraps, they are the only
    trace of the original."""
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
    """Return whether a function, method or class was defined in `module`."""
    return getattr(callee(value), "__module__", None) == module.__name__


def belongs(value: object, expression: str, module: types.ModuleType) -> bool:
    """Return whether a value is the object that `expression` names in `module`, or was created in `module`."""
    if value is MISSING:
        return False
    named: object = module
    for part in expression.split("."):
        named = read_namespace(named).get(part, MISSING) if isinstance(named, types.ModuleType | type) else MISSING
    # A wrapper made by functools.wraps has the name of the wrapped function, but its own globals.
    own = getattr(callee(value), "__globals__", None) is namespace(module)
    return own or (named is not MISSING and (named is value or named is callee(value))) or comes_from(value, module)


Function = Callable[..., object]


def build(patch: Patch, original: object, slot: Slot, leave_out: str = "") -> object:
    """Build the object that replaces the target. `original` is the value in the target's class or module,
    for example a staticmethod object instead of its function.

    `leave_out` is the variable that disables features. If the new object rejects a call, the error message mentions
    this variable.

    Raises ApplyError if the original cannot be wrapped or replaced, or if a global name in the implementation does not
    exist.
    """
    implementation = patch.implementation
    for ours in _functions(implementation):
        names = sorted(_global_names(ours.__code__) - ours.__globals__.keys() - vars(builtins).keys())
        if names:
            expected = "an implementation whose global names all resolve"
            found = f"unresolved in {ours.__qualname__}: {', '.join(names)}"
            raise _error(
                patch, expected, found, "import or define the unresolved names in the implementation's module"
            )
    if patch.action is Action.SET:
        if slot.key in getattr(slot.owner, "__dataclass_fields__", ()):
            # The generated __init__ has a copy of the default, and would go on using the old one.
            raise _unfit(patch, "a value that nothing has copied", "the default of a dataclass field")
        return implementation(original)
    if patch.action is Action.ADD or not isinstance(implementation, types.FunctionType):
        return implementation
    function: Any = callee(original)
    if function is None:
        raise _unfit(patch, "a property with a getter", "a property without a getter")
    if not callable(function) and not hasattr(function, "__get__"):
        raise _unfit(patch, "a callable", f"{function!r}")
    made = (
        _replaced(implementation, function) if patch.action is Action.REPLACE else _wrapped(patch, function, leave_out)
    )
    if isinstance(made, types.FunctionType):
        # An imported function keeps the name of its origin, and pickle would find the original under that name.
        made.__module__, made.__qualname__ = patch.target.module, patch.target.qualname
    if isinstance(original, staticmethod | classmethod):
        return type(original)(made)
    if isinstance(original, property):
        return property(made, original.fset, original.fdel, original.__doc__)
    if isinstance(original, functools.cached_property):
        cached = functools.cached_property(made)
        # A class statement would have passed it the name that it uses to store its value.
        cached.__set_name__(cast(type, slot.owner), slot.key)
        return cached
    return made


def _replaced(implementation: types.FunctionType, original: object) -> Function:
    # A copy lets one implementation serve several targets. Each copy is found under its own name, as pickle by
    # reference and Ray require, and keeps the marks that upstream's decorators left on the function.
    made = clone(implementation)
    functools.update_wrapper(made, cast(Function, original))
    del made.__wrapped__  # type: ignore[attr-defined]  # set by update_wrapper
    return made


@dataclass(frozen=True, slots=True)
class _Wrapping:
    """An implementation that is called with the original, and the parameters that it has after the original."""

    patch: Patch
    leave_out: str
    most: int
    """The maximum number of positional arguments that it takes."""
    own: tuple[str, ...]
    """The names of its parameters after the original."""
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
        """Call the implementation. Arguments that the implementation has no parameter for are passed on to the
        original.

        These arguments belong to optional parameters that upstream has added. If the implementation does not call the
        original, raise ApplyError instead of losing the arguments.

        Args:
            called: the function that the implementation receives as its original: the original itself or, if the
                original is already bound to its instance, a function that calls the bound original.
        """
        if len(args) <= self.most and (self.any_name or kwargs.keys() <= self.names):
            return self.patch.implementation(called, *args, **kwargs)
        unknown = {name: kwargs.pop(name) for name in tuple(kwargs) if not self.any_name and name not in self.names}
        names = list(inspect.signature(cast(Function, original)).parameters)
        # A parameter that upstream has renamed is the one in the same place.
        kwargs |= {ours: unknown.pop(name) for name, ours in zip(names, self.own, strict=False) if name in unknown}
        # Pass surplus positional arguments by name, because the implementation may call the original with fewer.
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
                expected = "only the arguments that this patch handles, because it replaces the upstream function"
                fix = (
                    f"disable the feature with {self.leave_out}={self.patch.feature}, or call the function without "
                    "these arguments"
                )
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
    # A plain function stays a plain function, because Ray pickles it by name, which a proxy object would not survive.
    # The check is written out here, because calling a function for it would cost more than the check.
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
    """Wrap a callable that is not a plain function. Keep its other features (`cache_clear`, `register`, its kind)."""
    if isinstance(original, type):
        found = f"the class {original.__qualname__}, which can only be replaced"
        raise _unfit(wrapping.patch, "a function or method to wrap", found)
    # Imported here, because most processes wrap only plain functions.
    import wrapt

    def call(wrapped: Function, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        # A method arrives bound, but implementations take `self` after the original, as for plain functions.
        if instance is None or inspect.isclass(instance):
            return wrapping.pass_on(original, wrapped, args, kwargs)

        def unbound(self: object, *args: object, **kwargs: object) -> object:
            return wrapped(*args, **kwargs)

        return wrapping.pass_on(original, unbound, (instance, *args), kwargs)

    return cast(Function, wrapt.FunctionWrapper(cast(Function, original), call))


def _error(patch: Patch, expected: str, found: str, fix: str) -> ApplyError:
    return ApplyError(subject=f"patch {patch.id} of {patch.target}", expected=expected, found=found[:300], fix=fix)


def _unexpected(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "do not load the other package that replaces this target")


def _unfit(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "declare a patch that suits the object in upstream")
