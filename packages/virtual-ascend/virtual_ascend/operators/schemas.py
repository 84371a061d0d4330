"""The operators under `torch.ops.npu` and `torch.ops.atb`, with the schemas of the emulated torch_npu version.

schemas.json holds the real schemas, which scripts/record_schemas.py takes from the wheels. An operator or a parameter
that the emulated version does not have does not exist here either. Some earlier versions reject arguments although
their schemas are the same; RESTRICTIONS lists these, as seen on the wheels.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

from packaging.version import Version

from ..names import release
from .devices import check_devices

if TYPE_CHECKING:
    import torch

Given = Mapping[str, object]
TRACED = "npu_traced"
"""The namespace of the operators in an FX graph. FX would decompose operators of the namespace `npu`."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Arguments that an operator rejects before a certain version."""

    operator: str
    before: str
    applies: Callable[[Given], bool]
    """Returns whether these arguments are rejected."""
    message: str


def _asks_for_a_gradient(values: Iterable[object]) -> bool:
    import torch

    each = [x for value in values for x in (value if isinstance(value, list | tuple) else (value,))]
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in each)


def _undifferentiable(operator: str, before: str) -> Restriction:
    # With these wheels the gradients of its inputs are None, and only a warning says so.
    message = f"has no gradient before torch_npu {before}, which leaves the gradients of its inputs None"
    return Restriction(operator, before, lambda given: _asks_for_a_gradient(given.values()), message)


RESTRICTIONS = (
    _undifferentiable("npu_moe_token_permute", "2.7.1"),
    _undifferentiable("npu_moe_token_unpermute", "2.7.1"),
    _undifferentiable("npu_fast_gelu", "2.9.0"),
    Restriction(
        "npu_grouped_matmul",
        "2.6",
        lambda given: given["group_type"] == 2,
        "Invalid value of group_type [2], which should only be one of -1/0.",
    ),
    Restriction(
        "npu_quantize",
        "2.10.0",
        lambda given: bool(given["div_mode"]) and cast("torch.Tensor", given["scales"]).dim() != 1,
        "Scales' dim should be equal to 1.",
    ),
)


def of_operator(operator: str, version: str) -> tuple[Restriction, ...]:
    """Return the restrictions of `operator` in this torch_npu version. Each restriction describes arguments that the
    operator rejects."""
    installed = Version(version)
    return tuple(each for each in RESTRICTIONS if each.operator == operator and installed < Version(each.before))


Operator = Callable[..., object]
Schema = TypeVar("Schema")


class _Recorded(TypedDict):
    """The content of schemas.json."""

    versions: list[str]
    operators: dict[str, dict[str, list[str]]]
    """The schemas by operator and first version; an empty list if the operator was removed in that version."""
    atb: dict[str, dict[str, dict[str, str]]]
    """The schema by module (torch_npu, torch_npu.atb), operator, and first version; empty if no wheel contains it."""


RECORDED = Path(__file__).with_name("schemas.json")


# The errors of Python and torch for arguments that a real operator would itself reject.
_REFUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# The operators that FX traces step by step. The first five return shapes that depend on values, and the shapes of
# attention's results depend on how it is computed. The casts may return their argument. AdamW writes into its
# arguments, and its schema does not say so.
_BY_STEPS = frozenset(
    {
        "npu_grouped_matmul",
        "npu_kv_rmsnorm_rope_cache",
        "npu_moe_init_routing_v2",
        "npu_moe_token_permute_with_routing_map",
        "npu_moe_token_unpermute_with_routing_map",
        "npu_fusion_attention",
        "npu_dtype_cast",
        "npu_format_cast",
        "npu_apply_adam_w",
    }
)
_libraries: list[torch.library.Library] = []  # a deleted library would take its operators along


@functools.cache
def _recorded() -> _Recorded:
    recorded: _Recorded = json.loads(RECORDED.read_text())
    return recorded


def versions() -> list[str]:
    """Return the versions of torch_npu whose schemas are recorded, oldest first."""
    return list(_recorded()["versions"])


def of_version(version: str) -> dict[str, list[str]]:
    """Return the schemas of each operator in a version of torch_npu.

    If the version is not recorded, use the closest earlier recorded version or, if there is none, the oldest recorded
    version.
    """
    wanted = max(release(version), Version(versions()[0]))
    found = {}
    for name, changes in _recorded()["operators"].items():
        texts = _newest(changes, wanted)
        if texts:
            found[name] = texts
    return found


def atb_of_version(version: str) -> dict[str, dict[str, str]]:
    """Return the schemas of ATB's operators in a version of torch_npu: for each module, a mapping from operator names
    to schemas. A schema is empty if no wheel contains it."""
    wanted = max(release(version), Version(versions()[0]))
    found: dict[str, dict[str, str]] = {}
    for place, operators in _recorded()["atb"].items():
        for name, changes in operators.items():
            text = _newest(changes, wanted)
            if text is not None:
                found.setdefault(place, {})[name] = text
    return found


def _newest(changes: Mapping[str, Schema], wanted: Version) -> Schema | None:
    """Return the newest entry up to the version `wanted`, or None if all entries are newer."""
    past = [schema for since, schema in changes.items() if Version(since) <= wanted]
    return past[-1] if past else None


def register_atb(functions: Mapping[str, Operator], host: Mapping[str, Sequence[str]], version: str) -> None:
    """Define the implemented operators of ATB under `torch.ops.atb`. Call this function only once in each process.

    Args:
        functions: a mapping from the operators' names to their implementations.
        host: for each operator, the arguments that are read on the host and may be CPU tensors.
        version: the version of torch_npu.
    """
    import torch

    library = torch.library.Library("atb", "FRAGMENT")
    _libraries.append(library)
    for operators in atb_of_version(version).values():
        for name, text in operators.items():
            if name not in functions or not text:
                continue
            library.define(text)
            schema = torch._C.parse_schema(f"atb::{text}")
            guarded = _guarded(name, functions[name], version, host.get(name, ()))
            library.impl(name, by_name(guarded, schema), "PrivateUse1")
            if not schema.returns:
                # It writes into its arguments, so on the meta device there is nothing to do.
                library.impl(name, _nothing, "Meta")


def register_own(namespace: str, texts: Sequence[str], functions: Mapping[str, Operator], version: str) -> None:
    """Define the operators of a library other than torch_npu, with the schemas `texts`. Call this function only once
    in each process."""
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    for text in texts:
        name = text.partition("(")[0]
        library.define(text)
        schema = torch._C.parse_schema(f"{namespace}::{text}")
        library.impl(name, by_name(_guarded(name, functions[name], version), schema), "CompositeImplicitAutograd")


def register_plain(namespace: str, text: str, function: Operator) -> None:
    """Define one operator whose implementation is called without any checks, because it computes nothing. Call this
    function only once in each process."""
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    library.define(text)
    library.impl(text.partition("(")[0], function, "PrivateUse1")


def _nothing(*_args: object, **_options: object) -> None:
    return None


def register(functions: Mapping[str, Operator], version: str) -> dict[str, Operator]:
    """Define the operators of `version` under `torch.ops.npu`. Call this function only once in each process.

    The new operators are compositions of other operators, and are differentiable if these other operators are. In an
    FX graph, each operator is a single node, like a kernel, unless a gradient is required.

    Returns:
        The operators of `torch.ops.npu`, as a mapping from names to operators.
    """
    import torch

    library, nodes = torch.library.Library("npu", "DEF"), torch.library.Library(TRACED, "DEF")
    _libraries.extend((library, nodes))
    offered = of_version(version)
    for name, texts in offered.items():
        for text in texts:
            library.define(text)
            schema = torch._C.parse_schema(f"npu::{text}")
            full = text.partition("(")[0]
            function = functions.get(full, functions[name])
            implementation = by_name(_guarded(name, function, version), schema)
            if name not in _BY_STEPS and not any(a.alias_info for a in (*schema.arguments, *schema.returns)):
                nodes.define(text)
                nodes.impl(full, implementation, "PrivateUse1")
                nodes.impl(full, by_name(function, schema), "Meta")
                implementation = _one_node(implementation, full)
            library.impl(full, implementation, "CompositeImplicitAutograd")
    return {name: getattr(torch.ops.npu, name) for name in offered}


def _one_node(implementation: Operator, name: str) -> Operator:
    """Make FX trace a call as a single operator instead of step by step, because FX cannot see some of the steps."""
    import torch

    mode, tracing = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY

    @functools.wraps(implementation)
    def call(*args: object, **options: object) -> object:
        if mode(tracing) is None or _asks_for_a_gradient((*args, *options.values())):
            return implementation(*args, **options)
        packet, _, overload = name.partition(".")
        node: Operator = getattr(getattr(getattr(torch.ops, TRACED), packet), overload or "default")
        return node(*args, **options)

    return call


def by_name(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Wrap a function so that torch can call it as the kernel of an operator with this schema.

    If the function lacks a parameter of the schema, that parameter is not implemented, and only its default value is
    accepted.
    """
    import torch

    # torch omits arguments that equal the schema's defaults. In some versions, our function has other defaults.
    names = [argument.name for argument in schema.arguments]
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    own = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    unwritten = () if takes_all else tuple(name for name in names if name not in own)
    from . import captures

    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        given = {**defaults, **dict(zip(names, args, strict=False)), **options}
        for name in unwritten:
            value = given.pop(name)
            if value is not None and (isinstance(value, torch.Tensor) or value != defaults.get(name)):
                operator = schema.name.partition("::")[2]
                raise NotImplementedError(f"{operator}: virtual-ascend does not implement {name}")
        results = captures.call(schema.name, function, given)
        # Later versions append more results.
        return results[: len(schema.returns)] if isinstance(results, tuple) else results

    return call


def renamed(function: Operator, names: Mapping[str, str]) -> Operator:
    """Return a function that takes some arguments of `function` under other names. `names` maps each name in the
    signature of `function` to the new name."""
    old = {new: name for name, new in names.items()}

    def call(*arguments: object, **options: object) -> object:
        return function(*arguments, **{old.get(name, name): value for name, value in options.items()})

    signature = inspect.signature(function)
    parameters = [each.replace(name=names.get(each.name, each.name)) for each in signature.parameters.values()]
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def with_signature_of(operator: Operator, function: Operator, *more: str) -> Operator:
    """Return a function that passes on its arguments to `function`, and that has the signature of `operator`, with the
    parameters `more` added."""

    def call(*arguments: object, **options: object) -> object:
        return function(*arguments, **options)

    signature = inspect.signature(operator)
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more]
    vars(call)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *added])
    return call


def _guarded(name: str, function: Operator, version: str, host: Sequence[str] = ()) -> Operator:
    restrictions = of_operator(name, version)

    @functools.wraps(function)
    def call(**given: object) -> object:
        check_devices(name, {argument: value for argument, value in given.items() if argument not in host})
        for restriction in restrictions:
            if restriction.applies(given):
                raise RuntimeError(f"{name}: {restriction.message}")
        try:
            return function(**given)
        except _REFUSED as error:
            # A program that catches the errors of real operators must also catch these errors.
            raise RuntimeError(f"{name}: the arguments are invalid: {error}") from error

    return call
