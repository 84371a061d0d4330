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
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from ...errors import ApplyError
from ..patch import Action, Patch
from ..source.definition import Definition, Kind, fits
from ..source.tree import SourceTree, Target
from .slots import MISSING, Slot, namespace, read_namespace


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


def functions_of(implementation: Callable[..., object]) -> Iterator[types.FunctionType]:
    """Return the function itself, or of a class the functions in its own body."""
    if isinstance(implementation, types.FunctionType):
        yield implementation
    elif isinstance(implementation, type):
        for member in vars(implementation).values():
            inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(inner, types.FunctionType):
                yield inner


def global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, and those inside it, look up among globals and builtins."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= global_names(constant)
    return names


def unresolved_names(function: types.FunctionType) -> list[str]:
    """Return the global names of `function` that are neither in its module nor builtin, in order."""
    names = global_names(function.__code__)
    return sorted(n for n in names if n not in function.__globals__ and not hasattr(builtins, n))


_DESCRIPTORS = {
    Kind.CLASS: type,
    Kind.PROPERTY: property,
    Kind.CACHED_PROPERTY: functools.cached_property,
    Kind.STATICMETHOD: staticmethod,
    Kind.CLASSMETHOD: classmethod,
}
# Decorators that make functions of functions, of those that upstreams have on what is patched.
_MAKE_FUNCTIONS = frozenset({"register", "annotate", "GPUMemoryLogger", "no_grad"})
_MAKE_MANAGERS = frozenset({"contextmanager", "asynccontextmanager"})
_TRANSPARENT = (
    _MAKE_FUNCTIONS | _MAKE_MANAGERS | {"property", "staticmethod", "classmethod", "cached_property", "setter"}
)
_MANAGER = contextlib.contextmanager(lambda: iter(())).__code__
_ASYNC_MANAGER = contextlib.asynccontextmanager(cast(Any, lambda: iter(()))).__code__


def check_live(patch: Patch, slot: Slot, tree: SourceTree, module: types.ModuleType) -> None:
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
        if not any(_is_imported(value, origin) for origin in tree.origins(patch.target)):
            raise _unexpected(patch, f"what {module.__file__} imports", f"{value!r}")
        return
    if definition is None or definition.kind in (Kind.IMPORTED, Kind.ASSIGNED):
        # What such a name holds is not written there: the fingerprint of the statement has to do.
        return
    expected = f"the {definition.kind} defined in {module.__file__}"
    inner = _inner(value)
    if not _makes(definition, value, inner):
        raise _unexpected(patch, expected, f"{value!r}")
    if _is_where_the_source_has_it(inner, patch, module):
        return
    layers = list(_layers(inner))
    function = layers[-1]
    # What upstream's decorators made comes first from within; what is around that is somebody else's.
    own = (n for n, layer in enumerate(layers) if not definition.plain and _is_upstreams(layer, tree))
    strange = next(own, len(layers) - 1) if _TRANSPARENT.issuperset(definition.decorators) else 0
    for outer, under in pairwise(layers[: strange + 1]):
        if not _stands_for(outer, under, definition.signature):
            raise _unexpected(patch, expected, f"around it, what is another kind or called otherwise: {value!r}")
    if _is_where_the_source_has_it(function, patch, module):
        return
    if not definition.plain and any(_reaches(each, patch, module) for each in _enclosed(function)):
        return
    code = getattr(function, "__code__", None)
    # What a decorator made of it may have no code of its own; then the source's fingerprint has to do.
    if definition.plain or code is not None or _MAKE_FUNCTIONS.issuperset(definition.decorators):
        where = f"{value!r}" if code is None else f"{code.co_name} from {code.co_filename}"
        raise _unexpected(patch, expected, where)


def _makes(definition: Definition, value: object, inner: object) -> bool:
    """Whether an object is of the kind that the source makes, as far as the source tells."""
    # A singledispatchmethod is bound before it is called.
    if not callable(inner) and not hasattr(inner, "__get__"):
        return False
    wanted = _DESCRIPTORS.get(definition.kind)
    if wanted is not None:
        return isinstance(value, wanted)
    if definition.kind is Kind.REMOTE or isinstance(value, tuple(_DESCRIPTORS.values())):
        # A patch of what Ray keeps would not reach the processes that it starts.
        return False
    # A proxy such as wrapt's gives itself out for what it wraps, and is no second one.
    plain = [layer for layer in _layers(inner) if type(layer) is types.FunctionType]
    managers = [layer for layer in plain if _live_kind(layer) is Kind.CONTEXT_MANAGER]
    if len(managers) != len(_MAKE_MANAGERS.intersection(definition.decorators)):
        return False
    registered = definition.decorators.count("register")
    if _TRANSPARENT.issuperset(definition.decorators) and _registrations(inner) > registered:
        return False
    if _REGISTERED not in _marks(inner) and any(_REGISTERED in _marks(each) for each in _enclosed(inner)):
        return False
    # An object that gives itself out for a function, as wrapt's do, passes on what it does not do itself.
    return isinstance(inner, types.FunctionType) or not _MAKE_FUNCTIONS.issuperset(definition.decorators)


def _layers(value: object) -> Iterator[object]:
    """Yield an object that can be called, and all that it wraps, one after the other."""
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        seen.add(id(value))
        yield value
        value = getattr(value, "__wrapped__", None)


def _is_upstreams(layer: object, tree: SourceTree) -> bool:
    """Whether a decorator of an upstream, of torch or of contextlib made an object, or it is the function itself."""
    file = getattr(getattr(layer, "__code__", None), "co_filename", "")
    homes = (sys.modules.get(name) for name in (*tree.packages, "torch"))
    folders = (folder for home in homes if home is not None for folder in getattr(home, "__path__", ()))
    return file == contextlib.__file__ or any(file.startswith(f"{folder}{os.sep}") for folder in folders)


def _is_imported(value: object, origin: Target) -> bool:
    """Whether an object is what a module has under a name, or wraps it and stands for it."""
    holder = sys.modules.get(origin.module)
    held = namespace(holder).get(origin.name, MISSING) if isinstance(holder, types.ModuleType) else MISSING
    if held is MISSING or held is value:
        return True
    layers, origins = list(_layers(value)), list(_layers(held))
    # It may be patched where it comes from since, too. None has no layer.
    if not layers or not origins or layers[-1] is not origins[-1] or not isinstance(layers[-1], types.FunctionType):
        return False
    taken = _bare_signature(layers[-1])
    return all(_stands_for(one, layers[-1], taken) for one in layers[:-1])


def _stands_for(wrapper: object, function: object, taken: str) -> bool:
    """Whether a wrapper of a function is of its kind, and takes what it takes."""
    kind, inner = _live_kind(wrapper), _live_kind(function)
    # What passes a context manager on need not look like one.
    if kind is not inner and (kind, inner) != (Kind.FUNCTION, Kind.CONTEXT_MANAGER):
        return False
    if _marks(wrapper) != _marks(function):
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
    # Of a bare copy: functools.wraps also copies the __signature__ that Ray leaves on an actor's methods.
    return list(inspect.signature(clone(function)).parameters.values())


def _live_kind(value: object) -> Kind:
    """Return the kind of an object that can be called, whatever it unwraps to."""
    code = getattr(value, "__code__", None)
    if code in (_MANAGER, _ASYNC_MANAGER):
        return Kind.CONTEXT_MANAGER
    if inspect.isasyncgenfunction(value):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(value):
        return Kind.COROUTINE
    return Kind.GENERATOR if inspect.isgeneratorfunction(value) else Kind.FUNCTION


# What verl's `register` leaves on a method that the controller calls on all workers.
_REGISTERED = "attrs_3141562937"
# And what functools.singledispatch leaves, which also calls what others put in the function's place.
_DISPATCHING = frozenset({_REGISTERED, "dispatch", "registry"})


def _marks(value: object) -> frozenset[str]:
    return _DISPATCHING.intersection(getattr(value, "__dict__", ()))


def _registrations(value: object) -> int:
    """Return how often a method was registered: functools.wraps passes a mark on, and `register` leaves its own."""
    marks = [getattr(layer, "__dict__", {}).get(_REGISTERED) for layer in _layers(value)]
    return len({id(mark) for mark in marks if mark is not None})


def _is_where_the_source_has_it(value: object, patch: Patch, module: types.ModuleType) -> bool:
    if isinstance(value, type):
        # A module that `python -m` runs is called __main__.
        known = (patch.target.module, module.__name__)
        return value.__module__ in known and value.__qualname__ == patch.target.qualname
    code = getattr(value, "__code__", None)
    if type(value) is not types.FunctionType or code is None:
        return False
    # A closure of the same name in the same file is not the target; before 3.11 code does not keep its full name.
    name = getattr(code, "co_qualname", value.__qualname__)
    return (code.co_filename, name) == (module.__file__, patch.target.qualname)


def _reaches(value: object, patch: Patch, module: types.ModuleType) -> bool:
    return _is_where_the_source_has_it(inspect.unwrap(cast(Function, value)), patch, module)


def _enclosed(function: object) -> list[types.FunctionType]:
    """Return the functions that a decorator's closure holds: one without functools.wraps tells in no other way."""
    found: list[types.FunctionType] = []
    waiting = [function]
    while waiting:
        for cell in getattr(waiting.pop(), "__closure__", None) or ():
            held = _content(cell)
            if isinstance(held, types.FunctionType) and held not in found:
                found.append(held)
                waiting.append(inspect.unwrap(held))
    return found


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty: what it is for has not run yet
        return None


def comes_from(value: object, module: types.ModuleType) -> bool:
    """Whether a function, method or class was defined in `module`."""
    return getattr(_inner(value), "__module__", None) == module.__name__


def belongs(value: object, expression: str, module: types.ModuleType) -> bool:
    """Whether a value is what `expression` names in `module`, by identity, or a function or class made in `module`."""
    if value is MISSING:
        return False
    contents = namespace(module)
    inner = _inner(value)
    named: object = module
    for part in expression.split("."):
        named = read_namespace(named).get(part, MISSING) if isinstance(named, types.ModuleType | type) else MISSING
    # A wrapper that was made by functools.wraps has the name of what it wraps, but its own globals.
    own = getattr(inner, "__globals__", None) is contents
    return own or (named is not MISSING and (named is value or named is inner)) or comes_from(value, module)


def _inner(value: object) -> types.FunctionType:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.cached_property):
        value = value.func
    return value  # type: ignore[return-value]  # what is no function shows by having no code


Function = Callable[..., object]


def build(patch: Patch, original: object, slot: Slot) -> object:
    """Make what takes the target's place: `original` is what its namespace holds, a descriptor as it is.

    Raises ApplyError for a kind of object that cannot be wrapped or replaced.
    """
    check_names(patch)
    implementation = patch.implementation
    if patch.action is Action.SET:
        if slot.key in getattr(slot.owner, "__dataclass_fields__", ()):
            # The default is in __init__ as well, which would go on giving the old one.
            raise _unfit(patch, "a value that nothing has copied", "the default of a dataclass's field")
        return implementation(original)
    if patch.action is Action.ADD or not isinstance(implementation, types.FunctionType):
        return implementation
    if isinstance(original, staticmethod | classmethod):
        return type(original)(_called(patch, implementation, original.__func__))
    if isinstance(original, property):
        if original.fget is None:
            raise _unfit(patch, "a property with a getter", "one without")
        getter = _called(patch, implementation, original.fget)
        return property(getter, original.fset, original.fdel, original.__doc__)
    if isinstance(original, functools.cached_property):
        made = functools.cached_property(_called(patch, implementation, original.func))
        # The class statement would have told it its name, under which it keeps its value.
        made.__set_name__(cast(type, slot.owner), slot.key)
        return made
    return _called(patch, implementation, original)


def check_names(patch: Patch) -> None:
    """Raise ApplyError if the implementation refers to global names that do not resolve."""
    for function in functions_of(patch.implementation):
        missing = unresolved_names(function)
        if missing:
            expected = "an implementation whose global names all resolve"
            found = f"unresolved in {function.__qualname__}: {', '.join(missing)}"
            raise _error(patch, expected, found, "import or define them in the module of the implementation")


def _called(patch: Patch, implementation: types.FunctionType, original: object) -> Function:
    if not callable(original) and not hasattr(original, "__get__"):
        raise _unfit(patch, "something that can be called", f"{original!r}")
    if patch.action is Action.REPLACE:
        return _replaced(implementation, original)
    known = _known(implementation)
    if isinstance(original, types.FunctionType) and not _is_generator(original):
        return _wrapped(patch, implementation, known, original)
    return _proxied(patch, implementation, known, original)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a wrapper's implementation has parameters for, after the original."""

    most: int
    """How many arguments without a name."""
    own: tuple[str, ...]
    """The names of those."""
    names: frozenset[str]
    any_name: bool


def _known(implementation: Function) -> _Known:
    # The first one is the original.
    first, *parameters = inspect.signature(implementation).parameters.values()
    kinds = {parameter.kind for parameter in (first, *parameters)}
    own = tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)
    return _Known(
        most=sys.maxsize if inspect.Parameter.VAR_POSITIONAL in kinds else len(own),
        own=own,
        names=frozenset(parameter.name for parameter in parameters if parameter.kind in _BY_NAME),
        any_name=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def _passed_on(
    patch: Patch,
    implementation: Function,
    known: _Known,
    original: object,
    called: Function,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Call the implementation, and pass on to the original what it has no parameter for.

    An upstream may have added a parameter that need not be given. Whoever gives it all the same gets an ApplyError if
    the implementation does without the original: it would be lost.

    Args:
        called: what the implementation is to call: the original, or a method of it without the instance.
    """
    unknown = {name: kwargs.pop(name) for name in tuple(kwargs) if not known.any_name and name not in known.names}
    names = list(inspect.signature(cast(Function, original)).parameters)
    # What has another name here is what stands in the same place.
    kwargs |= {ours: unknown.pop(theirs) for theirs, ours in zip(names, known.own, strict=False) if theirs in unknown}
    # By name: the implementation may call the original with fewer in front of them.
    unknown |= dict(zip(names[known.most :], args[known.most :], strict=False))
    args = args[: known.most]
    if not unknown:
        return implementation(called, *args, **kwargs)
    calls: list[object] = []

    def informed(*inner: object, **options: object) -> object:
        calls.append(called)
        return called(*inner, **unknown, **options)

    made = implementation(informed, *args, **kwargs)
    if inspect.iscoroutine(made):
        return _awaited(made, lambda: _refuse_to_lose(patch, calls, unknown))
    if not inspect.isgenerator(made):
        _refuse_to_lose(patch, calls, unknown)
    return made


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


async def _awaited(made: Awaitable[object], check: Callable[[], None]) -> object:
    result = await made
    check()
    return result


def _refuse_to_lose(patch: Patch, calls: Collection[object], unknown: Collection[str]) -> None:
    if calls:
        return
    raise _error(
        patch,
        "arguments that it knows, where it does upstream's work itself",
        f"{', '.join(unknown)}",
        f"leave the feature out with VERL_NPU_DISABLE={patch.feature}, or call it without that",
    )


def _replaced(implementation: types.FunctionType, original: object) -> Function:
    # A copy, so that one implementation may serve several targets: each is found again under its own name, which is
    # what pickle by reference and Ray need, and keeps marks that upstream's decorators left on the function.
    made = clone(implementation)
    functools.update_wrapper(made, cast(Function, original))
    del made.__wrapped__  # type: ignore[attr-defined]  # update_wrapper has just set it
    return made


def _wrapped(patch: Patch, implementation: Callable[..., Any], known: _Known, original: Function) -> Function:
    # A plain function stays one: Ray pickles it by name, which a proxy object would not survive. What is asked in each
    # call is asked here, and not in a function of its own, which would cost more than the question.
    most, names, any_name = known.most, known.names, known.any_name
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapper(*args: object, **kwargs: object) -> object:
            if len(args) <= most and (not kwargs or any_name or kwargs.keys() <= names):
                return await implementation(original, *args, **kwargs)
            passed = _passed_on(patch, implementation, known, original, original, args, kwargs)
            return await cast(Awaitable[object], passed)
    else:

        @functools.wraps(original)
        def wrapper(*args: object, **kwargs: object) -> object:
            if len(args) <= most and (not kwargs or any_name or kwargs.keys() <= names):
                return implementation(original, *args, **kwargs)
            return _passed_on(patch, implementation, known, original, original, args, kwargs)

    return wrapper


def _is_generator(function: types.FunctionType) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _proxied(patch: Patch, implementation: Function, known: _Known, original: object) -> Function:
    """Wrap what is no plain function, and keep all else that it can do (`cache_clear`, `register`, its kind)."""
    if isinstance(original, type):
        raise _unfit(patch, "a function or method to wrap", f"the class {original.__qualname__}: replace it instead")
    # Imported here, since most processes wrap plain functions only.
    import wrapt

    def implemented(called: Function, *args: object, **kwargs: object) -> object:
        if len(args) <= known.most and (not kwargs or known.any_name or kwargs.keys() <= known.names):
            return implementation(called, *args, **kwargs)
        return _passed_on(patch, implementation, known, original, called, args, kwargs)

    def call(wrapped: Function, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        # A method arrives bound; implementations take `self` after the original, as they do for plain functions.
        if instance is None or inspect.isclass(instance):
            return implemented(wrapped, *args, **kwargs)

        def unbound(self: object, *args: object, **kwargs: object) -> object:
            return wrapped(*args, **kwargs)

        return implemented(unbound, instance, *args, **kwargs)

    return cast(Function, wrapt.FunctionWrapper(cast(Function, original), call))


def _error(patch: Patch, expected: str, found: str, fix: str) -> ApplyError:
    return ApplyError(subject=f"patch {patch.id} of {patch.target}", expected=expected, found=found[:300], fix=fix)


def _unexpected(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "another package patches the same target: load only one of the two")


def _unfit(patch: Patch, expected: str, found: str) -> ApplyError:
    return _error(patch, expected, found, "declare the patch for what upstream has there")
