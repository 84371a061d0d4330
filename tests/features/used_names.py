"""What the code of a patch uses of upstream, read from the source of this project by a program.

The code is followed from the implementation through the functions of this project that it calls. What upstream hands
over (the instance, its configuration) is a value whose attributes and keys are noted, at any depth, as is what is
imported from an upstream or taken from its modules. What is known when the program runs, such as a constant that holds
the name of a module, is looked up in the modules of this project, which are imported.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from verl_npu.features import UPSTREAMS
from verl_npu.registry.patch import Action, Patch

PACKAGES = {package for upstream in UPSTREAMS for package in upstream.packages}
OURS = "_verl_npu"

FOREIGN = {
    ".engine": "vLLM's",
    "_get_actor_params": "torch's parameters",
    "act_fn": "torch's module",
    "gate": "torch's module",
    "actor_module": "Megatron's modules",
    "actor_module_fsdp": "torch's module",
    "bridge": "mbridge's, or Megatron-Bridge's",
    "data.batch": "a TensorDict",
    "down_proj": "torch's module or parameter",
    "engine_kwargs": "the user's, for the engine",
    "env_vars": "the user's",
    "gate_up_proj": "torch's parameter",
    "get_torch_device": "a module of torch's or torch_npu's",
    "hybrid_tp": "the user's, for the engine",
    "inference_engine": "vLLM's",
    "lm_head": "torch's module",
    "model_runner": "vLLM's",
    "override_config": "the user's, for the model",
    "override_transformer_config": "the user's, for Megatron",
    "pos_embed": "torch's module",
    "provider": "Megatron-Bridge's",
    "pyhccl": "vllm-ascend's communicator",
    "rollout_device_mesh": "torch's mesh of devices",
    "runtime_env": "the user's, for Ray",
    "socket": "ZeroMQ's",
    "weight": "torch's parameter",
}
"""What upstream's objects and functions give that is another library's: nothing that is taken from it is upstream's.
A dot before it means that the attribute is one of the object that the patch is given."""

UNDECLARED = {
    "_backward_hooks": "torch's, of a module",
    "_backward_pre_hooks": "torch's, of a module",
    "_forward_hooks": "torch's, of a module",
    "_forward_pre_hooks": "torch's, of a module",
    "bias": "torch's, of a linear module",
    "env_vars": "the key of Ray's runtime environment",
    "forward": "torch's, of a module",
    "_metadata": "torch's, of a state",
    "configs": "of Triton's tuner",
    "fn": "of Triton's decorators",
    "kwargs": "of Triton's tuner",
    "_replace": "of Megatron's request",
    "apply": "of a TensorDict",
    "async_fn": "of Megatron's request",
    "attn_implementation": "the user's key",
    "dp_model_parallel_size": "the user's key",
    "enable_expert_parallel": "the user's key",
    "enable_sleep_mode": "the user's key",
    "hybrid_tp": "the user's key",
    "hydra": "the key of Hydra's own section",
    "override_config": "the user's section",
    "ray_init": "the key at 796871d7, or that of ray_kwargs after it",
    "runtime_env": "the user's key",
    "sorted_keys": "of a TensorDict",
    "to": "of a TensorDict",
    "wait": "of Ray's placement group",
    "weight": "torch's, of a linear module",
    "weight_sync.process_weights_once_and_prove_them: model_runner": "of vLLM's worker",
}
"""What need not be declared, because upstream's source does not have it."""

# A parameter with one of these annotations is no object of upstream's.
_PLAIN = {"Tensor", "torch", "nn", "str", "int", "float", "bool", "Callable", "Request", "Namespace"}
_PASSED_ON = ("vars", "reversed", "sorted", "iter", "next", "dict", "list", "set", "tuple", "cast")
_TAKES = ("get", "pop", "setdefault")
_METHODS = {name for kind in (dict, list, str, set) for name in dir(kind)}


@dataclass(frozen=True)
class Given:
    """What upstream handed over, or what was taken from that: the names that lead to it."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """A value of this project, as it is when the program runs."""

    value: Any


@dataclass(frozen=True)
class Theirs:
    """A module of an upstream, or something in one, by its full dotted name."""

    name: str


@dataclass(frozen=True)
class Taking:
    """A method of a mapping that is called with a key, such as `config.get`."""

    owner: Given | Theirs


@dataclass(frozen=True)
class Original:
    """Upstream's function that a wrapper is given: how it is called, the target's signature says."""


@dataclass(eq=False)
class Made:
    """An object of a class of this project, with what its methods assign to it."""

    kind: type
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Nested:
    """A function inside another one."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    names: dict[str, Any]


@dataclass
class Used:
    """What a patch uses of upstream."""

    imported: set[str] = field(default_factory=set)
    """`module:name`, or a module alone."""
    attributes: set[str] = field(default_factory=set)
    """Attributes of upstream's objects, and keys of its configuration."""
    calls: set[tuple[str, int, tuple[str, ...]]] = field(default_factory=set)
    """Calls of what is upstream's: the last part of the name, how many arguments by position, and which keywords."""


def used_by(patch: Patch) -> Used:
    """Return what the code of a patch uses."""
    reader = _Reader()
    function = inspect.unwrap(patch.implementation)
    given: list[object] = [Given()] * len(inspect.signature(function).parameters)
    if patch.action is Action.WRAP:
        given[0] = Original()
    reader.call(function, given, {})
    imported = reader.used.imported - {patch.target.module}
    # A module, or what was taken from it, is not used for itself.
    imported = {name for name in imported if not any(other.startswith(f"{name}.") for other in imported)}
    attributes = {name for name in reader.used.attributes if not name.startswith((OURS, "__"))}
    return Used(imported, attributes, reader.used.calls)


class _Reader:
    def __init__(self) -> None:
        self.used = Used()
        self._seen: set[object] = set()

    def call(self, function: FunctionType, values: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Follow a function of this project, and return what it returns, as far as that can be told."""
        node = _definition(function) if function.__module__.startswith("verl_npu.features") else None
        if node is None:
            return None
        closure = inspect.getclosurevars(function)
        names: dict[str, Any] = {k: Known(v) for k, v in {**closure.globals, **closure.nonlocals}.items()}
        # Names that only a nested function reads are none of the outer one's.
        names = {**{k: Known(v) for k, v in vars(sys.modules[function.__module__]).items()}, **names}
        return self._enter(node, names, values, keywords)

    def _enter(self, node: Any, names: dict[str, Any], values: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        key = (node, tuple(map(_key, values)), tuple(sorted((k, _key(v)) for k, v in keywords.items())))
        if key in self._seen:
            return None
        self._seen.add(key)
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        names = {**names, **{a.arg: None for a in [*positional, *arguments.kwonlyargs]}}
        bound = {**dict(zip((a.arg for a in positional), values, strict=False)), **keywords}
        for argument in [*positional, *arguments.kwonlyargs]:
            value = bound.get(argument.arg)
            names[argument.arg] = None if isinstance(value, Given) and _is_plain(argument.annotation) else value
        for rest in filter(None, (arguments.vararg, arguments.kwarg)):
            names[rest.arg] = None
        if isinstance(node, ast.Lambda):
            return self.value(node.body, names)
        return self._body(node.body, names)

    # Statements.

    def _body(self, statements: Sequence[ast.stmt], names: dict[str, Any]) -> Any:
        returned = None
        for statement in statements:
            result = self._statement(statement, names)
            returned = returned if returned is not None else result
        return returned

    def _statement(self, node: ast.stmt, names: dict[str, Any]) -> Any:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = Nested(node, names)
            self._enter(node, names, (), {})
        elif isinstance(node, ast.ClassDef):
            names[node.name] = None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            value = self.value(node.value, names) if node.value is not None else None
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, value, names)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._loop(node, names)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                value = self.value(item.context_expr, names)
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, value, names)
            return self._body(node.body, names)
        elif isinstance(node, ast.If | ast.While):
            self.value(node.test, names)
            first = self._body(node.body, names)
            return first if first is not None else self._body(node.orelse, names)
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            return self._body([*node.body, *handlers, *node.orelse, *node.finalbody], names)
        elif isinstance(node, ast.Return):
            return self.value(node.value, names) if node.value is not None else None
        else:
            self._children(node, names)
        return None

    def _loop(self, node: ast.For | ast.AsyncFor, names: dict[str, Any]) -> None:
        for element in self._elements(self.value(node.iter, names)):
            self._bind(node.target, element, names)
            self._body(node.body, names)
        self._body(node.orelse, names)

    def _elements(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Known) and value.value is sys.modules:
            yield None
        elif isinstance(value, Known) and isinstance(value.value, tuple | list | set | frozenset | dict):
            yield from (Known(each) for each in value.value)
        elif isinstance(value, tuple):
            yield from value
        else:
            # What upstream's list holds is upstream's as well.
            yield Given((value.name,)) if isinstance(value, Theirs) else value

    def _bind(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            given = value if isinstance(value, Given) else None
            if isinstance(value, Known) and isinstance(value.value, tuple):
                value = tuple(map(Known, value.value))
            parts = (
                value if isinstance(value, tuple) and len(value) == len(target.elts) else [given] * len(target.elts)
            )
            for inner, part in zip(target.elts, parts, strict=True):
                self._bind(inner, part, names)
        else:
            self.value(target, names)
            owner = self.value(target.value, names) if isinstance(target, ast.Attribute) else None
            if isinstance(owner, Made) and isinstance(target, ast.Attribute):
                owner.attributes[target.attr] = value

    def _import(self, node: ast.Import | ast.ImportFrom, names: dict[str, Any]) -> None:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.Import):
                names[local] = self._taken(alias.name if alias.asname else local)
            elif node.level or (node.module or "").startswith("verl_npu"):
                package = "." * node.level + (node.module or "")
                module = importlib.import_module(package, names["__package__"].value)
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{module.__name__}.{alias.name}")
                names[local] = Known(getattr(module, alias.name))
            else:
                names[local] = self._taken(f"{node.module}.{alias.name}")

    # Expressions.

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """Note what an expression uses, and return what it is; None if that cannot be told."""
        if isinstance(node, ast.Constant):
            return Known(node.value)
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(p.value if isinstance(p, ast.FormattedValue) else p, names) for p in node.values]
            texts = [part.value for part in parts if isinstance(part, Known) and isinstance(part.value, str)]
            return Known("".join(texts)) if len(texts) == len(parts) else None
        if isinstance(node, ast.Attribute):
            return self._attribute(self.value(node.value, names), node.attr)
        if isinstance(node, ast.Subscript):
            return self._item(self.value(node.value, names), self.value(node.slice, names))
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.Lambda):
            self._enter(node, names, (), {})
            return Nested(node, names)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.value(element, names) for element in node.elts)
        if isinstance(node, ast.BoolOp | ast.IfExp):
            if isinstance(node, ast.IfExp):
                self.value(node.test, names)
            parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
            values = [self.value(part, names) for part in parts]
            return next((value for value in values if isinstance(value, Given | Theirs | tuple) and value), values[-1])
        if isinstance(node, ast.Await | ast.Starred | ast.NamedExpr):
            value = self.value(node.value, names)
            if isinstance(node, ast.NamedExpr):
                names[node.target.id] = value
            return value
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return tuple(self._comprehension(node, list(node.generators), dict(names)))
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            self._item(self.value(node.comparators[0], names), self.value(node.left, names))
            return None
        self._children(node, names)
        return None

    def _children(self, node: ast.AST, names: dict[str, Any]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, names)

    def _comprehension(self, node: Any, generators: list[ast.comprehension], names: dict[str, Any]) -> list[Any]:
        if not generators:
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            return [self.value(part, names) for part in parts]
        first, *rest = generators
        made: list[Any] = []
        for element in self._elements(self.value(first.iter, names)):
            self._bind(first.target, element, names)
            for test in first.ifs:
                self.value(test, names)
            made += self._comprehension(node, rest, names)
        return made

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Given):
            return Taking(owner) if name in _TAKES else self._from(owner, name)
        if isinstance(owner, Theirs):
            if name in _TAKES:
                return Taking(owner)
            return Given((owner.name,)) if name in _METHODS else self._taken(f"{owner.name}.{name}")
        if isinstance(owner, Made):
            method = getattr(owner.kind, name, None)
            return owner.attributes.get(name) or (
                Known(partial(method, owner)) if inspect.isfunction(method) else None
            )
        if isinstance(owner, Known) and not isinstance(owner.value, str):
            found = getattr(owner.value, name, None)
            return Known(found) if found is not None else None
        return None

    def _from(self, owner: Given, name: str) -> Any:
        if name in _METHODS:
            return owner  # what a container of upstream's gives is upstream's
        self.used.attributes.add(name)
        spellings = {name, ".".join((*owner.names[-1:], name)), "" if owner.names else f".{name}"}
        foreign = not spellings.isdisjoint(FOREIGN)
        return None if foreign or name.startswith(OURS) else Given((*owner.names, name))

    def _item(self, owner: Any, key: Any) -> Any:
        text = key.value if isinstance(key, Known) and isinstance(key.value, str) else None
        if isinstance(owner, Known) and owner.value is sys.modules:
            return self._taken(text) if text is not None else None
        if text is not None and text.isidentifier() and isinstance(owner, Given | Theirs):
            return self._attribute(owner, text)
        return Given((owner.name,)) if isinstance(owner, Theirs) else owner if isinstance(owner, Given) else None

    def _taken(self, name: str) -> Any:
        if name.partition(".")[0] not in PACKAGES:
            return None
        self.used.imported.add(name)
        return Theirs(name)

    def _call(self, node: ast.Call, names: dict[str, Any]) -> Any:
        function = self.value(node.func, names)
        values = [self.value(argument, names) for argument in node.args]
        keywords = {keyword.arg: self.value(keyword.value, names) for keyword in node.keywords}
        named = {key: value for key, value in keywords.items() if key is not None}
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("getattr", "hasattr", "setattr", "delattr") and len(values) > 1:
            return self._item(values[0], values[1])
        if called in _PASSED_ON and values:
            return values[-1] if called == "cast" else values[0]
        if called == "map":
            return tuple(self._apply(values[0], [element], {}) for element in self._elements(values[1]))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and isinstance(function, Given | tuple):
            return function
        if isinstance(function, Theirs | Given):
            name = function.name if isinstance(function, Theirs) else ".".join(function.names)
            if None not in keywords and not any(isinstance(argument, ast.Starred) for argument in node.args):
                self.used.calls.add((name.rpartition(".")[2], len(values), tuple(sorted(named))))
            return None if name.rpartition(".")[2] in FOREIGN else Given((name,))
        return self._apply(function, values, named)

    def _apply(self, function: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(function, Taking):
            return self._item(function.owner, values[0]) if values else None
        if isinstance(function, Original):
            return Given(("result",))
        if isinstance(function, Nested):
            return self._enter(function.node, dict(function.names), values, named)
        return self._call_known(function.value, values, named) if isinstance(function, Known) else None

    def _call_known(self, function: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        owner = getattr(function, "__self__", None)
        if function is copy.deepcopy:
            return values[0]
        if isinstance(owner, dict) and function.__name__ in ("items", "values"):
            return None if owner is sys.modules else Known(list(function()))
        if function is importlib.import_module or owner is sys.modules:
            return self._taken(values[0].value) if values and isinstance(values[0], Known) else None
        if isinstance(function, partial):
            return self.call(function.func, [*function.args, *values], named)
        target = inspect.unwrap(function) if callable(function) else None
        if isinstance(target, type) and isinstance(vars(target).get("__init__"), FunctionType):
            made = Made(target)
            self.call(vars(target)["__init__"], [made, *values], named)
            return made
        if inspect.ismethod(target):
            return self.call(target.__func__, [None, *values], named)
        return self.call(target, values, named) if isinstance(target, FunctionType) else None


def _key(value: Any) -> object:
    if isinstance(value, Known):
        return ("known", repr(value.value)[:200])
    if isinstance(value, Made):
        return value.kind
    return value.node if isinstance(value, Nested) else value if isinstance(value, Given | Theirs | Taking) else None


def _is_plain(annotation: ast.expr | None) -> bool:
    words = (
        {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation is not None else set()
    )
    return bool(words & _PLAIN)


_TREES: dict[str, dict[int, ast.AST]] = {}


def _definition(function: FunctionType) -> Any:
    """Return where a function is written, by its first line; a clone has that of the one it was made of."""
    name = function.__code__.co_filename
    if name == "<string>":  # a dataclass made it
        return None
    if name not in _TREES:
        with open(name, encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
        _TREES[name] = {
            min([node.lineno, *(d.lineno for d in node.decorator_list)]): node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return _TREES[name][function.__code__.co_firstlineno]
