"""Edits of a target, made by rule from upstream's source: some change the object that it names, others nothing.

Each edit is one changed file in memory. It is kept only if Python still parses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from verl_npu.registry.source.tree import Target

from .mutants import Upstream

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORDS = ("GPUMemoryLogger", "DistProfiler.annotate")


class Effect(str, Enum):
    """The effect of an edit on callers of the target."""

    CHANGED = "changed"
    """The name is bound to something else, of another kind, or called in another way."""
    GUTTED = "gutted"
    """It is called as before, but does nothing."""
    HARMLESS = "harmless"
    """A wrapper sees no difference, and a replacement only another wording."""


@dataclass(frozen=True)
class Place:
    """A target in the text of its module: the function that binds it, and the lines around it."""

    target: Target
    node: Function
    lines: tuple[str, ...]

    @property
    def first(self) -> int:
        """The index of its first line, its decorators included."""
        return min([self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)]) - 1

    @property
    def end(self) -> int:
        return self.node.end_lineno or self.node.lineno

    @property
    def indent(self) -> str:
        return " " * self.node.col_offset

    @property
    def owner(self) -> str:
        """The name of the outermost class; empty for a function of the module."""
        return self.target.owner.partition(".")[0]

    @property
    def name(self) -> str:
        return self.target.name

    def above(self, text: str) -> str:
        """Return the module with lines above the definition, at its indentation."""
        return "".join([*self.lines[: self.first], *_at(self.indent, text), *self.lines[self.first :]])

    def beside(self, text: str) -> str:
        """Return the module with lines below the definition, at its indentation."""
        return "".join([*self.lines[: self.end], *_at(self.indent, text), *self.lines[self.end :]])

    def below(self, text: str) -> str:
        """Return the module with lines at its end."""
        return "".join([*self.lines, "\n\n", *_at("", text)])

    def instead(self, node: Function, *, before: str = "") -> str:
        """Return the module with another definition in place of this one."""
        text = _at(self.indent, f"{before}{ast.unparse(ast.fix_missing_locations(node))}")
        return "".join([*self.lines[: self.first], *text, *self.lines[self.end :]])

    def copy(self) -> Function:
        """Return the definition as a copy that may be changed."""
        text = "".join(self.lines[self.first : self.end])
        body = ast.parse(f"if 1:\n{text}" if self.indent else text).body[0]
        node = body.body[0] if isinstance(body, ast.If) else body
        assert isinstance(node, Function)
        return node


def _at(indent: str, text: str) -> list[str]:
    return [f"{indent}{line}\n" if line else "\n" for line in text.splitlines()]


Edit = Callable[[Place], str | None]
"""A function that returns the module's new text, or None if the edit cannot be made of this target."""


def _changed(change: Callable[[Function], bool | None]) -> Edit:
    """Return an edit that changes a copy of the definition; `change` returns False if the edit cannot be made."""

    def edit(place: Place) -> str | None:
        node = place.copy()
        return None if change(node) is False else place.instead(node)

    return edit


def _decorated(decorator: str) -> Edit:
    return lambda place: place.above(f"@{decorator}")


def _below(text: str, method: bool | None = None) -> Edit:
    """Return an edit that adds lines at the module's end; `method` restricts it to methods or to functions."""

    def edit(place: Place) -> str | None:
        if method is not None and method is not bool(place.owner):
            return None
        names = {"name": place.name, "owner": place.owner, "full": place.target.qualname, "class_": place.target.owner}
        return place.below(text.format(**names))

    return edit


def _beside(text: str) -> Edit:
    return lambda place: place.beside(text.format(name=place.name))


def _toggled(place: Place) -> str:
    node = place.copy()
    other = ast.FunctionDef if isinstance(node, ast.AsyncFunctionDef) else ast.AsyncFunctionDef
    made = other(**{name: getattr(node, name, None) for name in node._fields})
    if other is ast.FunctionDef:
        text = ast.unparse(ast.fix_missing_locations(made))
        text = re.sub(r"\basync (for|with)\b", r"\1", re.sub(r"\bawait\b", "", text))
        return "".join([*place.lines[: place.first], *_at(place.indent, text), *place.lines[place.end :]])
    return place.instead(made)


def _yields(node: Function) -> bool | None:
    if any(isinstance(inner, ast.Yield | ast.YieldFrom | ast.Return) for inner in ast.walk(node)):
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
            return False
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return):
                inner.value = None
    node.body.append(ast.parse("yield").body[0])
    return None


def _undecorated(node: Function) -> bool | None:
    kept = [decorator for decorator in node.decorator_list if ast.unparse(decorator).startswith(_WORDS)]
    if len(kept) == len(node.decorator_list):
        return False
    node.decorator_list = kept
    return None


def _dispatched_otherwise(node: Function) -> bool | None:
    calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "register"]
    if not calls:
        return False
    calls[0].keywords = [ast.keyword("dispatch_mode", ast.parse("Dispatch.RANK_ZERO", mode="eval").body)]
    return None


def _own(node: Function) -> list[ast.arg]:
    return [argument for argument in node.args.args if argument.arg not in ("self", "cls")]


def _parameter_renamed(node: Function) -> bool | None:
    own = [*_own(node), *node.args.kwonlyargs]
    if not own:
        return False
    old = own[0].arg
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == old:
            inner.id = f"{old}_renamed"
    own[0].arg = f"{old}_renamed"
    return None


def _parameter_dropped(node: Function) -> bool | None:
    if not _own(node):
        return False
    node.args.args.pop()
    node.args.defaults = node.args.defaults[:-1]
    return None


def _parameter_required(node: Function) -> bool | None:
    node.args.args.insert(len(node.args.args) - len(node.args.defaults), ast.arg("required_new"))
    return None


def _parameter_first(node: Function) -> bool | None:
    if not _own(node):
        return False
    node.args.args.insert(len(node.args.args) - len(_own(node)), ast.arg("first_new"))
    return None


def _parameters_swapped(node: Function) -> bool | None:
    if len(_own(node)) < 2:
        return False
    *_, a, b = range(len(node.args.args))
    arguments = node.args.args
    arguments[a], arguments[b] = arguments[b], arguments[a]
    return None


def _keyword_only(node: Function) -> bool | None:
    if not _own(node) or node.args.vararg is not None:
        return False
    node.args.kwonlyargs.insert(0, node.args.args.pop())
    node.args.kw_defaults.insert(0, node.args.defaults.pop() if node.args.defaults else None)
    return None


def _default_gone(node: Function) -> bool | None:
    if not node.args.defaults:
        return False
    node.args.defaults.pop(0)
    return None


def _options_gone(node: Function) -> bool | None:
    if node.args.kwarg is None:
        return False
    node.args.kwarg = None
    return None


def _under(condition: str) -> Edit:
    def edit(place: Place) -> str:
        text = "".join(f"    {line}" if line.strip() else line for line in place.lines[place.first : place.end])
        head = f"{place.indent}if {condition}:\n"
        return "".join([*place.lines[: place.first], head, text, *place.lines[place.end :]])

    return edit


def _in_except(place: Place) -> str:
    text = "".join(f"    {line}" if line.strip() else line for line in place.lines[place.first : place.end])
    head = _at(place.indent, f"try:\n    from somewhere_new import {place.name}\nexcept ImportError:")
    return "".join([*place.lines[: place.first], *head, text, *place.lines[place.end :]])


def _class_decorated(decorator: str) -> Edit:
    def edit(place: Place) -> str | None:
        if not place.owner:
            return None
        starts = [n for n, line in enumerate(place.lines) if re.match(rf"class {place.owner}\b", line)]
        at = starts[-1] if starts else None
        return None if at is None else "".join([*place.lines[:at], f"@{decorator}\n", *place.lines[at:]])

    return edit


def _gutted(text: str) -> Edit:
    def edit(node: Function) -> bool | None:
        asynchronous = isinstance(node, ast.AsyncFunctionDef)
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
            return False  # it would be of another kind
        node.body = ast.parse(text).body
        assert asynchronous is isinstance(node, ast.AsyncFunctionDef)
        return None

    return _changed(edit)


# Edits that change nothing for callers.


def _optional_last(node: Function) -> bool | None:
    if node.args.vararg is not None:
        return False
    node.args.args.append(ast.arg("optional_new"))
    # An optional parameter may only follow others with a default, or end the list.
    node.args.defaults.append(ast.Constant(None))
    return None


def _optional_keyword(node: Function) -> bool | None:
    node.args.kwonlyargs.append(ast.arg("optional_new"))
    node.args.kw_defaults.append(ast.Constant(None))
    return None


def _annotated(node: Function) -> bool | None:
    for argument in [*node.args.args, *node.args.kwonlyargs]:
        if argument.arg not in ("self", "cls"):
            argument.annotation = ast.parse('"SomeType | None"', mode="eval").body
    node.returns = ast.parse('"SomeResult"', mode="eval").body
    return None


def _bare(node: Function) -> bool | None:
    arguments = [*node.args.args, *node.args.kwonlyargs]
    if node.returns is None and all(argument.annotation is None for argument in arguments):
        return False
    for argument in arguments:
        argument.annotation = None
    node.returns = None
    return None


def _hoisted(place: Place) -> str | None:
    node = place.copy()
    found = [n for n, default in enumerate(node.args.defaults) if isinstance(default, ast.Constant)]
    if not found:
        return None
    default = ast.unparse(node.args.defaults[found[0]])
    node.args.defaults[found[0]] = ast.Name("_HOISTED_DEFAULT", ast.Load())
    text = place.instead(node)
    lines = text.splitlines(keepends=True)
    before = [n for n, line in enumerate(lines) if re.match(rf"class {place.owner}\b", line)] if place.owner else []
    at = before[0] if before else place.first
    while at and lines[at - 1].startswith("@"):
        at -= 1
    return "".join([*lines[:at], f"_HOISTED_DEFAULT = {default}\n", *lines[at:]])


def _default_changed(node: Function) -> bool | None:
    if not node.args.defaults:
        return False
    node.args.defaults[0] = ast.parse("'another default'", mode="eval").body
    return None


def _local_renamed(node: Function) -> bool | None:
    parameters = {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
    declared = {n for inner in ast.walk(node) if isinstance(inner, ast.Global | ast.Nonlocal) for n in inner.names}
    stored = [
        inner.id
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    ]
    own = [name for name in stored if name not in parameters | declared]
    if not own:
        return False
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == own[0]:
            inner.id = f"{own[0]}_renamed"
    return None


def _logged(line: str) -> Edit:
    def edit(node: Function) -> bool | None:
        at = 1 if ast.get_docstring(node) is not None else 0
        node.body[at:at] = ast.parse(line).body
        return None

    return _changed(edit)


def _documented(node: Function) -> bool | None:
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    node.body.insert(0, ast.Expr(ast.Constant("Another docstring.")))
    return None


def _reformatted(node: Function) -> bool | None:
    return None


def _renamed_role(node: Function) -> bool | None:
    words = [
        word
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith(_WORDS)
        for word in ast.walk(decorator)
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    ]
    if not words:
        return False
    words[0].value = "another role"
    return None


C, G, H = Effect.CHANGED, Effect.GUTTED, Effect.HARMLESS
_OTHER = "def other_new(*args, **kwargs):\n    return None\n"
EDITS: dict[str, tuple[Effect, Edit]] = {
    "to async, or back": (C, _toggled),
    "to a generator": (C, _changed(_yields)),
    "@contextmanager": (C, lambda place: place.above("@contextlib.contextmanager")),
    "@asynccontextmanager": (C, _decorated("asynccontextmanager")),
    "@cached_property": (C, _decorated("functools.cached_property")),
    "@property": (C, _decorated("property")),
    "@staticmethod": (C, lambda place: place.above("@staticmethod") if place.owner else None),
    "@classmethod": (C, lambda place: place.above("@classmethod") if place.owner else None),
    "@ray.remote": (C, _decorated("ray.remote")),
    "@ray.remote(...)": (C, _decorated("ray.remote(num_cpus=1)")),
    "@register(...)": (C, _decorated("register(dispatch_mode=Dispatch.RANK_ZERO)")),
    "@lru_cache": (C, _decorated("functools.lru_cache(maxsize=None)")),
    "@singledispatch": (C, _decorated("functools.singledispatch")),
    "another decorator": (C, _decorated("decorator_new")),
    "another decorator, called": (C, _decorated("decorators_new.made('x')")),
    "decorators gone": (C, _changed(_undecorated)),
    "another dispatch mode": (C, _changed(_dispatched_otherwise)),
    "parameter renamed": (C, _changed(_parameter_renamed)),
    "parameter gone": (C, _changed(_parameter_dropped)),
    "parameter required": (C, _changed(_parameter_required)),
    "parameter in front": (C, _changed(_parameter_first)),
    "parameters swapped": (C, _changed(_parameters_swapped)),
    "parameter by keyword only": (C, _changed(_keyword_only)),
    "default gone": (C, _changed(_default_gone)),
    "options gone": (C, _changed(_options_gone)),
    "decorated below": (C, _beside("{name} = decorator_new({name})")),
    "partial below": (C, _beside("{name} = functools.partial({name}, 1)")),
    "lambda below": (C, _beside("{name} = lambda *args, **kwargs: None")),
    "assigned beside": (C, _beside("{name} = other_new")),
    "assigned in a tuple": (C, _beside("{name}, another_new = pair_new()")),
    "class beside": (C, _beside("class {name}:\n    pass")),
    "del beside": (C, _beside("del {name}")),
    "for beside": (C, _beside("for {name} in several_new:\n    pass")),
    "with beside": (C, _beside("with manager_new() as {name}:\n    pass")),
    "except beside": (C, _beside("try:\n    pass\nexcept ValueError as {name}:\n    pass")),
    "walrus beside": (C, _beside("if ({name} := found_new()):\n    pass")),
    "match beside": (C, _beside("match value_new:\n    case {{'k': {name}}}:\n        pass")),
    "match rest beside": (C, _beside("match value_new:\n    case [*{name}]:\n        pass")),
    "import beside": (C, _beside("from somewhere_new import {name}")),
    "import of a module beside": (C, _beside("import somewhere_new as {name}")),
    "import under try beside": (C, _beside("try:\n    from fast_new import {name}\nexcept ImportError:\n    pass")),
    "in the except of an import": (C, _in_except),
    "under TYPE_CHECKING": (C, _under("TYPE_CHECKING")),
    "under if False": (C, _under("False")),
    "globals()": (C, _below('globals()["{name}"] = other_new', method=False)),
    "globals(), name unknown": (C, _below("for key in names_new:\n    globals()[key] = other_new", method=False)),
    "globals().update": (C, _below("globals().update({name}=other_new)", method=False)),
    "globals().update of a dict": (C, _below('globals().update({{"{name}": other_new}})', method=False)),
    "vars()": (C, _below('vars()["{name}"] = other_new', method=False)),
    "locals()": (C, _below('locals()["{name}"] = other_new', method=False)),
    "globals().pop": (C, _below('globals().pop("{name}")', method=False)),
    "del globals()": (C, _below('del globals()["{name}"]', method=False)),
    "setattr of the module": (C, _below('setattr(sys.modules[__name__], "{name}", other_new)', method=False)),
    "attribute of the module": (C, _below("sys.modules[__name__].{name} = other_new", method=False)),
    "__dict__ of the module": (C, _below('sys.modules[__name__].__dict__["{name}"] = other_new', method=False)),
    "the module by a name": (C, _below("here = sys.modules[__name__]\nhere.{name} = other_new", method=False)),
    "another module in its place": (C, _below("sys.modules[__name__] = Lazy(__name__)")),
    "star import": (C, _below("from star_new import *", method=False)),
    "for at the end": (C, _below("for {name} in several_new:\n    pass", method=False)),
    "function that declares it global": (
        C,
        _below("def install_new():\n    global {name}\n    {name} = other_new\n\ninstall_new()", method=False),
    ),
    "attribute of the class": (C, _below("{full} = other_new", method=True)),
    "attribute of the class, wrapped": (C, _below("{full} = decorator_new({full})", method=True)),
    "attribute of the class, def above": (C, _below(_OTHER + "\n{full} = other_new", method=True)),
    "attribute of the class in a tuple": (C, _below("{full}, x_new = pair_new()", method=True)),
    "attribute of the class under if": (C, _below("if fast_new:\n    {full} = other_new", method=True)),
    "setattr of the class": (C, _below('setattr({class_}, "{name}", other_new)', method=True)),
    "setattr, name unknown": (C, _below("for n in names_new:\n    setattr({class_}, n, other_new)", method=True)),
    "type.__setattr__": (C, _below('type.__setattr__({class_}, "{name}", other_new)', method=True)),
    "delattr of the class": (C, _below('delattr({class_}, "{name}")', method=True)),
    "del of the class's": (C, _below("del {full}", method=True)),
    "for into the class": (C, _below("for {full} in several_new:\n    pass", method=True)),
    "with into the class": (C, _below("with manager_new() as {full}:\n    pass", method=True)),
    "function that sets it": (C, _below("def install_new():\n    {full} = other_new\n\ninstall_new()", method=True)),
    "decorator that sets it": (
        C,
        _below("@apply_new\ndef install_new():\n    setattr({class_}, '{name}', other_new)\n", method=True),
    ),
    "the class by another name": (C, _below("alias_new = {class_}\nalias_new.{name} = other_new", method=True)),
    "class replaced": (C, _below("{owner} = OtherNew", method=True)),
    "class decorated below": (C, _below("{owner} = decorator_new({owner})", method=True)),
    "class defined again": (C, _below("class {owner}:\n    pass", method=True)),
    "subclass of its own name": (C, _below("class {owner}({owner}):\n    pass", method=True)),
    "class imported": (C, _below("from somewhere_new import {owner}", method=True)),
    "class deleted": (C, _below("del {owner}", method=True)),
    "class in globals()": (C, _below('globals()["{owner}"] = OtherNew', method=True)),
    "class by a star import": (C, _below("from star_new import *", method=True)),
    "class by setattr": (C, _below('setattr(sys.modules[__name__], "{owner}", OtherNew)', method=True)),
    "class in a for": (C, _below("for {owner} in several_new:\n    pass", method=True)),
    "class under @ray.remote": (C, _class_decorated("ray.remote(num_cpus=1)")),
    "class under a decorator": (C, _class_decorated("decorator_new")),
    "only raises": (G, _gutted("raise NotImplementedError")),
    "only passes": (G, _gutted("pass")),
    "optional parameter": (H, _changed(_optional_last)),
    "optional keyword": (H, _changed(_optional_keyword)),
    "annotations": (H, _changed(_annotated)),
    "no annotations": (H, _changed(_bare)),
    "default hoisted": (H, _hoisted),
    "another default": (H, _changed(_default_changed)),
    "local renamed": (H, _changed(_local_renamed)),
    "log line": (H, _logged("logger.info('here')")),
    "printed line": (H, _logged("print(f'here: {__name__}')")),
    "docstring": (H, _changed(_documented)),
    "reformatted": (H, _changed(_reformatted)),
    "another role": (H, _changed(_renamed_role)),
    "function below": (H, _below(_OTHER)),
    "another class below": (H, _below("class OtherNew:\n    def {name}(self):\n        {name} = 1\n        return 1")),
    "attribute of its own": (H, lambda place: place.below(f"{place.target.qualname}.note = 'a note'")),
    "another attribute of the class": (H, _below("{class_}.other_new = None", method=True)),
    "another name in globals()": (H, _below('globals()["other_new"] = None')),
    "another loop": (H, _below("for other_new in (1, 2):\n    pass")),
    "star import above": (H, lambda place: "".join(_star_above(place))),
    "called under __main__": (H, _below('if __name__ == "__main__":\n    {full}()')),
    "local of that name": (H, _below("def other_new():\n    {name} = 1\n    return {name}")),
}


def _star_above(place: Place) -> list[str]:
    tree = ast.parse("".join(place.lines))
    future = [n.end_lineno or 0 for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    documented = tree.body[0].end_lineno or 0 if ast.get_docstring(tree) is not None else 0
    at = max([documented, *future])
    return [*place.lines[:at], "from star_new import *\n", *place.lines[at:]]


def place_of(upstream: Upstream, target: Target) -> Place | None:
    """Return the place of a target, or None if it is bound to no function."""
    path, nodes = upstream.path(target.module), upstream.pristine.nodes(target)
    if path is None or not nodes or not isinstance(nodes[-1], Function):
        return None
    lines = upstream.text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return Place(target, nodes[-1], tuple(lines))


def edited(upstream: Upstream, target: Target) -> Iterator[tuple[str, Effect, dict[str, bytes | None]]]:
    """Yield the edits of a target: their names, their effects, and the changed file."""
    place = place_of(upstream, target)
    path = upstream.path(target.module)
    if place is None or path is None:
        return
    for name, (effect, edit) in EDITS.items():
        text = edit(place)
        if text is None or not _parses(text):
            continue
        yield name, effect, {path: text.encode()}


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
