"""Extraction of MindSpeed's contract from its source. Neither MindSpeed nor Megatron is imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from ...errors import SourceError
from .contract import NEWEST, Argument, Contract, FeatureFacts, contracts, recorded_as

_BASE = "MindSpeedFeature"
_CONFIGS = ("ModelParallelConfig", "TransformerConfig", "MLATransformerConfig")
_ADAPTOR, _OF_ADAPTOR = "megatron_adaptor", ("__init__.py", "import megatron_adaptor")
# Packages that the import of some revisions needs: the package, the file that imports it, and a mark in that file.
_IMPORTS = (
    (_ADAPTOR, *_OF_ADAPTOR),
    ("einops", "megatron_adaptor.py", ""),
    ("triton", "features_manager/megatron_basic/requirements_basic.py", "mindspeed.ops.triton"),
    ("scipy", "features_manager/transformer/experimental_attention_variant/dsa.py", "dsa_matrix_naive"),
)
_INSTALLED_BY = {"megatron.core": "megatron-core", "triton": "triton-ascend"}
_CONFIG_FILES = ("core/model_parallel_config.py", "core/transformer/transformer_config.py")


def extract(mindspeed: Path, megatron: Path, revision: str, core: str, *, deep: bool = True) -> Contract:
    """Extract the contract of the packages in the folders `mindspeed` and `megatron`: their arguments and features.

    `revision` and `core` are recorded as the revisions of MindSpeed and Megatron. With `deep`, also search for the
    keys that MindSpeed's code reads at run time, which takes seconds. Raises SourceError if one of the folders does
    not contain its package.
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
        reads |= {key for key in _args_attributes(node) if key.isidentifier()}
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
        adaptor=needs_adaptor(mindspeed),
    )


def needs_adaptor(mindspeed: Path) -> bool:
    """Return whether this MindSpeed version is built on MegatronAdaptor, as core_r0.17.0 and later are."""
    return _has(mindspeed, *_OF_ADAPTOR)


def _has(folder: Path, file: str, mark: str) -> bool:
    """Return whether a folder has a file with this text in it."""
    path = folder / file
    return path.is_file() and mark in path.read_text()


def missing_packages(mindspeed: Path | None) -> list[str]:
    """Return the packages that the MindSpeed version in this folder always imports but that are not installed in this
    environment."""
    missing = [] if package_folder("megatron", "core") is not None else ["megatron.core"]
    for package, file, mark in _IMPORTS:
        if mindspeed is not None and _has(mindspeed, file, mark) and importlib.util.find_spec(package) is None:
            missing.append(package)
    return missing


def advice(missing: Sequence[str]) -> str:
    """Return a sentence that says how to install the packages that `missing_packages` found."""
    steps = [f"pip install {' '.join(_INSTALLED_BY.get(name, name) for name in missing if name != _ADAPTOR)}"]
    if _ADAPTOR in missing:
        steps = [*(steps if len(missing) > 1 else ()), "install MegatronAdaptor and TransformerEngineNPU"]
    return f"{'; '.join(steps)}, in the versions that this version of MindSpeed requires"


def megatron_fields(megatron: Path) -> dict[str, str]:
    """Return the fields of Megatron's transformer configurations, with their annotations as source text."""
    fields = {}
    for path in _CONFIG_FILES:
        for node in parse(megatron / path).body:
            if isinstance(node, ast.ClassDef) and node.name in _CONFIGS:
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        fields[statement.target.id] = ast.unparse(statement.annotation)
    return dict(sorted(fields.items()))


def _validates(path: Path) -> bool:
    """Return whether MindSpeed's wrapper of TransformerConfig.__post_init__ calls the features' validate_args."""
    functions = parse(path).body if path.is_file() else []
    name = "transformer_config_post_init_wrapper"
    wrapper = (f for f in functions if isinstance(f, ast.FunctionDef) and f.name == name)
    return any(_method_calls(function, "validate_features_args") for function in wrapper)


def _feature_classes(mindspeed: Path) -> dict[str, ast.ClassDef]:
    """Return the classes below `features_manager`. Each has its own methods and those that it inherits from other
    classes there."""
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
    """Return the names of the classes in MindSpeed's own list of features, in the order of that list."""
    functions = {node.name: node for node in parse(path).body if isinstance(node, ast.FunctionDef)}
    if "create_features_list" not in functions:
        raise SourceError(
            subject=str(path),
            expected="a function named create_features_list",
            found="no function with this name",
            fix="use a recorded revision of MindSpeed; the revision at this path lists its features differently",
        )
    order = []
    for call in _calls(functions["create_features_list"]):
        if call in functions:
            order += _calls(functions[call])
    return order


def _calls(node: ast.AST) -> list[str]:
    """Return the names of the functions that `node` calls."""
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return [function.id for function in calls if isinstance(function, ast.Name)]


def _method_calls(node: ast.AST, method: str) -> list[ast.Call]:
    """Return the calls of a method on any object."""
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == method]


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]


def _name_and_level(node: ast.ClassDef) -> tuple[str, int]:
    init = next((method for method in _methods(node) if method.name == "__init__"), None)
    if init is None:
        return node.name, 2
    names = [argument.arg for argument in init.args.args][1:]
    defaults = dict(zip(reversed(names), map(literal, reversed(init.args.defaults)), strict=False))
    for call in _method_calls(init, "__init__"):
        given = dict(zip(("feature_name", "optimization_level"), call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        name = _resolved(given.get("feature_name"), defaults)
        level = _resolved(given["optimization_level"], defaults) if "optimization_level" in given else 2
        return str(name).lower().strip().replace("-", "_"), level if isinstance(level, int) else 2
    return node.name, 2


def _resolved(node: ast.expr | None, names: Mapping[str, object]) -> object:
    return names.get(node.id) if isinstance(node, ast.Name) else literal(node)


def _facts(node: ast.ClassDef, feature: str, level: int) -> FeatureFacts:
    def checked(method: str) -> tuple[str, ...]:
        keys = (literal(call.args[-1]) for call in _method_calls(node, method) if call.args)
        return tuple(sorted({key.replace("-", "_") for key in keys if isinstance(key, str)}))

    switches = {feature} if level else set()
    for method in _methods(node):
        if "validate" not in method.name and method.name not in ("register_args", "__init__"):
            switches |= _args_attributes(method)
    return FeatureFacts(level, checked("incompatible_check"), checked("dependency_check"), tuple(sorted(switches)))


def _merged(first: FeatureFacts | None, second: FeatureFacts) -> FeatureFacts:
    if first is None:
        return second

    return FeatureFacts(
        level=min(first.level, second.level),
        conflicts=tuple(sorted({*first.conflicts, *second.conflicts})),
        needs=tuple(sorted({*first.needs, *second.needs})),
        switches=tuple(sorted({*first.switches, *second.switches})),
    )


def _arguments(node: ast.ClassDef, feature: str) -> Iterator[tuple[str, Argument]]:
    for call in _method_calls(node, "add_argument"):
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
    for call in _method_calls(node, "add_parser_argument_choices_value"):
        flag, choice = (literal(argument) for argument in call.args[-2:])
        if isinstance(flag, str):
            yield flag.removeprefix("--").replace("-", "_"), choice


# Without Megatron's own get_args: verl never initializes megatron.training, so get_args has no arguments.
_GETTERS = ("get_full_args", "get_mindspeed_args")


# The variables that hold the arguments or a model's configuration in MindSpeed's and Megatron's code. MindSpeed sets
# each override as an attribute of both.
_HOLDERS = frozenset(
    {"args", "_args", "global_args", "full_args", "mindspeed_args", "config", "cfg", "transformer_config"}
)


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a source file. Raises SourceError if it cannot be parsed."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise SourceError(
            subject=str(path),
            expected="a source file of MindSpeed or Megatron",
            found=f"{type(error).__name__}: {error}",
            fix="pass the folder of the Python package, for example MindSpeed/mindspeed",
        ) from error


def keys_read(*packages: Path) -> set[str]:
    """Return the keys that the code in these folders reads from argument objects and configuration objects."""
    files = (path for package in packages for path in sorted(package.rglob("*.py")))
    keys = {key for path in files for key in _attributes_read(parse(path), _is_holder)}
    return {key for key in keys if key.isidentifier() and not key.startswith("__")}


def _is_holder(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _HOLDERS
    if isinstance(node, ast.Attribute):
        return node.attr in _HOLDERS
    return _is_call(node, {*_GETTERS, "get_args"})


def literal(node: ast.expr | None) -> object:
    """Return the value of a literal, or None if `node` is not a literal."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _attributes_read(tree: ast.AST, holds: Callable[[ast.expr], bool]) -> Iterator[str]:
    """Yield the attributes that `tree` reads from the expressions that `holds` accepts: with a dot, getattr, or
    hasattr."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and holds(node.value):
            yield node.attr
        elif _is_call(node, {"getattr", "hasattr"}) and len(node.args) > 1 and holds(node.args[0]):
            key = literal(node.args[1])
            if isinstance(key, str):
                yield key


def _args_attributes(node: ast.AST) -> set[str]:
    """Return the attributes that `node` reads from the variable `args`."""
    return set(_attributes_read(node, lambda read: isinstance(read, ast.Name) and read.id == "args"))


def process_keys(mindspeed: Path) -> set[str]:
    """Return the keys of the process's arguments that are read by MindSpeed's features or by code that the features
    import."""
    keys: set[str] = set()
    for path in _reachable(mindspeed):
        tree = parse(path)
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        getters = {alias.asname or alias.name for node in imports for alias in node.names if alias.name in _GETTERS}
        for function in ast.walk(tree) if getters else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                assigned = (n for n in ast.walk(function) if isinstance(n, ast.Assign) and _is_call(n.value, getters))
                held = {target.id for n in assigned for target in n.targets if isinstance(target, ast.Name)}
                keys |= set(_attributes_read(function, functools.partial(_is_held, held, getters)))
    return keys


def _is_held(held: set[str], getters: set[str], node: ast.expr) -> bool:
    """Return whether `node` evaluates to the arguments of the process: a variable in `held`, or a call of a function
    in `getters`."""
    return _is_call(node, getters) or (isinstance(node, ast.Name) and node.id in held)


def _reachable(mindspeed: Path) -> list[Path]:
    """Return the files that the features import, directly or indirectly. The features' own files are not included."""
    waiting = sorted((mindspeed / "features_manager").rglob("*.py"))
    seen = set(waiting)
    for path in waiting:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mindspeed."):
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names if alias.name.startswith("mindspeed.")]
            else:
                continue
            for module in modules:
                base = mindspeed.joinpath(*module.split(".")[1:])
                for file in (base.with_suffix(".py"), base / "__init__.py"):
                    if file.is_file() and file not in seen:
                        seen.add(file)
                        waiting.append(file)
    return [path for path in waiting if "features_manager" not in path.parts]


def _is_call(node: ast.AST, functions: set[str]) -> TypeGuard[ast.Call]:
    """Return whether `node` is a call of one of these functions."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions


@dataclass(frozen=True, slots=True)
class Installation:
    """The installed MindSpeed and Megatron. The folder of a package that is not installed is None."""

    mindspeed: Path | None
    megatron: Path | None
    contract: Contract
    """The contract of the installed source. If MindSpeed is not installed, the newest recorded contract."""
    exact: bool
    """Whether the extracted contract equals a recorded one."""
    differences: tuple[str, ...]
    """One line for each difference between the extracted contract and the nearest recorded one."""


@functools.cache
def installation() -> Installation:
    """Return the MindSpeed and Megatron that this process would import. They are examined only once."""
    return examine(package_folder("mindspeed", "features_manager"), package_folder("megatron", "core"))


def examine(mindspeed: Path | None, megatron: Path | None) -> Installation:
    """Examine the MindSpeed and Megatron in these folders. Raises SourceError if MindSpeed cannot be read or Megatron
    is missing."""
    if mindspeed is None:
        return Installation(
            mindspeed=None, megatron=megatron, contract=recorded_as(NEWEST), exact=False, differences=()
        )
    if megatron is None:
        raise SourceError(
            subject="megatron.core",
            found="MindSpeed is installed without Megatron-Core",
            fix="run `pip install megatron-core==VERSION` with the version that this version of MindSpeed requires",
        )
    extracted = extract(mindspeed, megatron, "installed", "installed", deep=False)
    recorded = nearest(extracted)
    differences = tuple(extracted.differences(recorded))
    name = recorded.revision if not differences else f"installed (nearest {recorded.revision})"
    # The search for the keys that the code reads at run time takes seconds. So we take them from the record, and
    # search the source only if it differs from every record.
    reads = recorded.reads if not differences else tuple(sorted(keys_read(mindspeed, megatron)))
    contract = replace(
        extracted,
        revision=name,
        megatron=recorded.megatron,
        process=recorded.process,
        reads=tuple(sorted({*extracted.reads, *reads})),
    )
    return Installation(
        mindspeed=mindspeed, megatron=megatron, contract=contract, exact=not differences, differences=differences
    )


def nearest(contract: Contract) -> Contract:
    """Return the recorded contract with the fewest differences from `contract`."""
    return min(contracts(), key=lambda recorded: sum(1 for _ in contract.differences(recorded)))


def package_folder(package: str, part: str) -> Path | None:
    """Return the folder of `package` that contains `part`. A namespace package such as `megatron` may have several
    folders."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # the module is in sys.modules without a spec
        return None
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((Path(place) for place in places if (Path(place) / part).is_dir()), None)
