"""Lookup of a patch's collaborators in a source tree.

An attribute exists if the class or one of its bases defines it, or if a method assigns it to `self`. A call fits if
each argument goes to the parameter of the same name, and if no other parameter is required. New optional parameters do
not matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .configuration import value_of
from .definition import Kind, signature
from .named import Collaborator, Name, Setting
from .tree import SourceTree, Target

# The number of base classes to follow; no class of an upstream has more.
_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Found:
    """The result of looking up a collaborator (an upstream name or setting that a patch's own code uses)."""

    what: str
    """The kind or the value of what was found. Empty if nothing was found."""
    fits: bool
    """Whether it is what the patch needs."""

    def __str__(self) -> str:
        return self.what or "nothing of that name"


_NOTHING = Found("", False)


def find(use: Collaborator, tree: SourceTree) -> Found:
    """Look up a collaborator in each of its possible locations. Return the first result that fits. If none fits,
    return the first result from a location where the name or setting exists. Raises SourceError if a module cannot be
    parsed."""
    found = [_setting(place, tree) if isinstance(place, Setting) else _name(place, tree) for place in use.places]
    fitting = (one for one in found if one.fits)
    return next(fitting, None) or next((one for one in found if one.what), _NOTHING)


def _setting(setting: Setting, tree: SourceTree) -> Found:
    value = value_of(setting.file, setting.key, tree)
    if value is None:
        return _NOTHING
    return Found(value, value == setting.value) if setting.value else Found("there", True)


def _name(name: Name, tree: SourceTree) -> Found:
    place = _defined(name.target, tree)
    if place is None:
        return _NOTHING
    if name.passed is None:
        return Found("there", True)
    definition = tree.definition(place)
    if definition is None or definition.kind is Kind.IMPORTED:
        # Its parameters cannot be seen: it belongs to `self` or to another library.
        return Found("there", True)
    kind = str(definition.kind)
    called = _defined(Target(place.module, f"{place.qualname}.__init__"), tree) if kind == Kind.CLASS else place
    functions = [node for node in tree.nodes(called or place) if isinstance(node, _FUNCTIONS)]
    if not functions:
        return Found(kind, False)
    bound = "." in (called or place).qualname and kind != Kind.STATICMETHOD
    fits = _fits(functions[-1].args, name, skipped=int(bound))
    return Found(kind if fits else f"{kind} {signature(functions[-1])}", fits)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _fits(arguments: ast.arguments, call: Name, *, skipped: int) -> bool:
    """Return whether a call works with these parameters. Each argument must go to the parameter of the same name.

    The first `skipped` parameters are already bound.
    """
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]][skipped:]
    required = set(positional[: max(len(positional) - len(arguments.defaults), 0)])
    required |= {
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    }
    keywords = {
        *positional[max(len(arguments.posonlyargs) - skipped, 0) :],
        *(one.arg for one in arguments.kwonlyargs),
    }
    for index, name in enumerate(call.positional):
        if positional[index : index + 1] != [name] and (index < len(positional) or arguments.vararg is None):
            return False
    taken = keywords.issuperset(call.keywords) or arguments.kwarg is not None
    return taken and required <= {*call.positional, *call.keywords}


def _defined(target: Target, tree: SourceTree, depth: int = _DEPTH, *, made: bool = True) -> Target | None:
    """Return the place where a name is defined, following imports and base classes, or None if there is none.

    Attributes that `__init__` assigns count only with `made`, which means that this `__init__` is called.
    """
    if not target.owner:
        chain = tree.chain(target)
        if chain or not depth:
            return chain[-1] if chain else None
        everything = (_defined(Target(module, target.name), tree, depth - 1) for module in _stars(target.module, tree))
        return next(filter(None, everything), None)
    for place in tree.chain(Target(target.module, target.owner)) if depth else ():
        member = Target(place.module, f"{place.qualname}.{target.name}")
        methods = _assigned_to_self(place, tree).get(target.name, frozenset())
        if tree.nodes(member) or methods - (set() if made else {"__init__"}):
            return member
        made = made and _makes_bases(place, tree)
        for base in _bases(place, tree):
            found = _defined(Target(base.module, f"{base.qualname}.{target.name}"), tree, depth - 1, made=made)
            if found is not None:
                return found
    return None


def _stars(module: str, tree: SourceTree) -> Iterator[str]:
    """Yield the modules that `module` imports with `from … import *`."""
    parsed = tree.parse(module)
    for node in parsed.body if parsed is not None else ():
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield tree.imported_module(module, node)


def _bases(place: Target, tree: SourceTree) -> Iterator[Target]:
    """Yield the bases of a class as targets: names in the class's own module, or in a module that it imports."""
    for node in tree.nodes(place):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            named = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(named, ast.Name):
                yield Target(place.module, named.id)
            elif isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
                origins = tree.origins(Target(place.module, named.value.id))
                yield from (Target(f"{origin.module}.{origin.qualname}", named.attr) for origin in origins)


def _makes_bases(place: Target, tree: SourceTree) -> bool:
    """Return whether making an object of a class calls the `__init__` of its bases. It does if the class has no
    `__init__` of its own, or if that calls another one."""
    own = [
        node for node in tree.nodes(Target(place.module, f"{place.qualname}.__init__")) if isinstance(node, _FUNCTIONS)
    ]
    return not own or any(
        isinstance(n, ast.Attribute) and n.attr == "__init__" for node in own for n in ast.walk(node)
    )


def _assigned_to_self(place: Target, tree: SourceTree) -> Mapping[str, frozenset[str]]:
    """Return the attributes that the methods of a class assign to `self`. The values are the names of these
    methods."""
    key = ("assigned to self", tree.read(place.module), place.qualname)
    return tree.memory.recall(key, lambda: _assignments(tree.nodes(place)))


def _assignments(nodes: Sequence[ast.stmt]) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    bodies = (statement for node in nodes if isinstance(node, ast.ClassDef) for statement in node.body)
    for method in (statement for statement in bodies if isinstance(statement, _FUNCTIONS) and statement.args.args):
        stores = (
            node for node in ast.walk(method) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        for node in stores:
            if isinstance(node.value, ast.Name) and node.value.id == method.args.args[0].arg:
                found[node.attr] = found.get(node.attr, frozenset()) | {method.name}
    return found
