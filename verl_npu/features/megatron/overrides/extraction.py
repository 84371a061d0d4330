"""Reads the contract of a MindSpeed revision from its source and Megatron's, and imports neither."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ....errors import SourceError
from .contract import Argument, Contract, FeatureFacts
from .reading import attributes_read, keys_read, literal, parse, process_keys

__all__ = ["extract", "megatron_fields"]

_BASE = "MindSpeedFeature"
_CONFIGS = ("ModelParallelConfig", "TransformerConfig", "MLATransformerConfig")
_CONFIG_FILES = ("core/model_parallel_config.py", "core/transformer/transformer_config.py")


def extract(mindspeed: Path, megatron: Path, revision: str, core: str, *, deep: bool = True) -> Contract:
    """Read the contract of the packages in the folders `mindspeed` and `megatron`.

    `deep` also searches for the keys that MindSpeed's code reads at run time, which takes seconds.
    Raises SourceError if either folder is not such a package.
    """
    classes = _feature_classes(mindspeed)
    active = _active_classes(mindspeed / "features_manager" / "__init__.py")
    features: dict[str, FeatureFacts] = {}
    arguments: dict[str, Argument] = {}
    added: dict[str, list[object]] = {}
    reads: set[str] = set()
    for name in active:
        node = classes.get(name)
        if node is None:
            continue
        feature, level = _name_and_level(node)
        reads |= {key for key in attributes_read(node, {"args"}) if key.isidentifier()}
        features[feature] = _merged(features.get(feature), _facts(node, feature, level))
        for key, argument in _arguments(node, feature):
            arguments.setdefault(key, argument)
        for key, choice in _added_choices(node):
            added.setdefault(key, []).append(choice)
    for key, choices in added.items():
        if key in arguments and arguments[key].choices:
            first = arguments[key]
            new = tuple(choice for choice in choices if choice not in first.choices)
            arguments[key] = Argument(first.type, first.default, first.choices + new, first.feature)
    fields = megatron_fields(megatron)
    known = {*arguments, *features, *fields}
    if deep:
        reads |= keys_read(mindspeed, megatron)
    return Contract(
        revision=revision,
        megatron=core,
        arguments=dict(sorted(arguments.items())),
        features=dict(sorted(features.items())),
        fields=fields,
        reads=tuple(sorted(reads - known)),
        process=tuple(sorted(process_keys(mindspeed) & known)) if deep else (),
        validates=_validates(mindspeed / "core" / "megatron_basic" / "arguments_basic.py"),
    )


def megatron_fields(megatron: Path) -> dict[str, str]:
    """Return the fields of Megatron's transformer configurations, with their annotations as they are written."""
    fields = {}
    for path in _CONFIG_FILES:
        for node in parse(megatron / path).body:
            if isinstance(node, ast.ClassDef) and node.name in _CONFIGS:
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        fields[statement.target.id] = ast.unparse(statement.annotation)
    return dict(sorted(fields.items()))


def _validates(path: Path) -> bool:
    """Whether MindSpeed's wrapper of TransformerConfig.__post_init__ calls the features' validate_args."""
    functions = parse(path).body if path.is_file() else []
    wrapper = (
        f for f in functions if isinstance(f, ast.FunctionDef) and f.name == "transformer_config_post_init_wrapper"
    )
    calls = (call.func for function in wrapper for call in _calls(function))
    return any(isinstance(called, ast.Attribute) and called.attr == "validate_features_args" for called in calls)


def _feature_classes(mindspeed: Path) -> dict[str, ast.ClassDef]:
    """Return each class below `features_manager`, with the methods that it inherits from another one there."""
    classes = {}
    for path in sorted((mindspeed / "features_manager").rglob("*.py")):
        classes.update({node.name: node for node in parse(path).body if isinstance(node, ast.ClassDef)})
    for node in classes.values():
        own = {method.name for method in _methods(node)}
        for base in _bases(node, classes):
            node.body += [method for method in _methods(base) if method.name not in own]
    return classes


def _bases(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != _BASE and base.id in classes:
            yield classes[base.id]
            yield from _bases(classes[base.id], classes)


def _active_classes(path: Path) -> list[str]:
    """Return the names of the classes in MindSpeed's own list, in its order."""
    functions = {node.name: node for node in parse(path).body if isinstance(node, ast.FunctionDef)}
    if "create_features_list" not in functions:
        raise SourceError(
            subject=str(path),
            expected="a function create_features_list",
            found="none",
            fix="this MindSpeed lists its features in another way: use one of the recorded revisions",
        )
    order = []
    for call in _calls(functions["create_features_list"]):
        if isinstance(call.func, ast.Name) and call.func.id in functions:
            inner = (c for c in _calls(functions[call.func.id]) if isinstance(c.func, ast.Name))
            order += [c.func.id for c in inner if isinstance(c.func, ast.Name)]
    return order


def _calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]


def _name_and_level(node: ast.ClassDef) -> tuple[str, int]:
    init = next((method for method in _methods(node) if method.name == "__init__"), None)
    if init is None:
        return node.name, 2
    names = [argument.arg for argument in init.args.args][1:]
    defaults = dict(zip(reversed(names), map(literal, reversed(init.args.defaults)), strict=False))
    for call in _calls(init):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            given = dict(zip(("feature_name", "optimization_level"), call.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            name = _resolved(given.get("feature_name"), defaults)
            level = _resolved(given["optimization_level"], defaults) if "optimization_level" in given else 2
            return str(name).lower().strip().replace("-", "_"), level if isinstance(level, int) else 2
    return node.name, 2


def _resolved(node: ast.expr | None, names: Mapping[str, object]) -> object:
    return names.get(node.id) if isinstance(node, ast.Name) else literal(node)


def _facts(node: ast.ClassDef, feature: str, level: int) -> FeatureFacts:
    conflicts: set[str] = set()
    needs: set[str] = set()
    switches = {feature} if level else set()
    for method in _methods(node):
        for call in _calls(method):
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("incompatible_check", "dependency_check"):
                key = literal(call.args[-1]) if call.args else None
                if isinstance(key, str):
                    (conflicts if call.func.attr == "incompatible_check" else needs).add(key.replace("-", "_"))
        if "validate" not in method.name and method.name not in ("register_args", "__init__"):
            switches |= set(attributes_read(method, {"args"}))
    return FeatureFacts(level, tuple(sorted(conflicts)), tuple(sorted(needs)), tuple(sorted(switches)))


def _merged(first: FeatureFacts | None, second: FeatureFacts) -> FeatureFacts:
    if first is None:
        return second

    def both(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*one, *other}))

    return FeatureFacts(
        min(first.level, second.level),
        both(first.conflicts, second.conflicts),
        both(first.needs, second.needs),
        both(first.switches, second.switches),
    )


def _arguments(node: ast.ClassDef, feature: str) -> Iterator[tuple[str, Argument]]:
    for call in _calls(node):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args:
            flag = next((text for a in call.args if (text := str(literal(a))).startswith("--")), None)
            if flag is not None:
                options = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
                key = literal(options.get("dest")) or flag[2:].replace("-", "_")
                yield str(key), _argument(options, feature)


def _argument(options: Mapping[str, ast.expr], feature: str) -> Argument:
    action = literal(options.get("action"))
    default = literal(options.get("default"))
    if action in ("store_true", "store_false"):
        return Argument("bool", action == "store_false" if default is None else default, (), feature)
    converter = options.get("type")
    known = converter.id if isinstance(converter, ast.Name) else "str" if converter is None else ""
    kind = "list" if "nargs" in options else known if known in ("int", "float", "str") else "any"
    choices = literal(options.get("choices"))
    return Argument(kind, default, tuple(choices) if isinstance(choices, list | tuple) else (), feature)


def _added_choices(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    for call in _calls(node):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_parser_argument_choices_value":
            flag, choice = (literal(argument) for argument in call.args[-2:])
            if isinstance(flag, str):
                yield flag.removeprefix("--").replace("-", "_"), choice
