"""The operators under `torch.ops.npu`, with the schemas of the torch_npu that the virtual Ascend pretends to be.

schemas.json holds the real ones, which scripts/maintain/record_schemas.py takes from the wheels. An operator or a
parameter that this version does not have does not exist here either.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from packaging.version import Version

from ..names import release
from .devices import check_devices
from .restrictions import of_operator

if TYPE_CHECKING:
    import torch

__all__ = ["RECORDED", "by_name", "of_version", "register", "versions"]

Operator = Callable[..., object]


class _Recorded(TypedDict):
    """schemas.json."""

    versions: list[str]
    operators: dict[str, dict[str, list[str]]]
    """By operator and by the version from which on they hold, its schemas; none once it is gone."""


RECORDED = Path(__file__).with_name("schemas.json")
# What Python and torch raise for arguments that an operator would refuse by itself.
_REFUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_libraries: list[torch.library.Library] = []  # a library that is dropped takes its operators along


@functools.cache
def _recorded() -> _Recorded:
    recorded: _Recorded = json.loads(RECORDED.read_text())
    return recorded


def versions() -> list[str]:
    """The versions of torch_npu whose schemas are recorded, oldest first."""
    return list(_recorded()["versions"])


def of_version(version: str) -> dict[str, list[str]]:
    """The schemas of each operator in a version: those of the newest recorded version that is not newer, or else of
    the oldest one."""
    wanted = max(release(version), Version(versions()[0]))
    found = {}
    for name, changes in _recorded()["operators"].items():
        past = [texts for since, texts in changes.items() if Version(since) <= wanted]
        if past and past[-1]:
            found[name] = past[-1]
    return found


def register(functions: Mapping[str, Operator], version: str) -> dict[str, Operator]:
    """Define the operators of `version` under `torch.ops.npu`, once per process.

    They are compositions of other operators: what those are differentiable in, these are too.

    Returns:
        The operators as `torch.ops.npu` has them, by name.
    """
    import torch

    library = torch.library.Library("npu", "DEF")
    _libraries.append(library)
    offered = of_version(version)
    for name, texts in offered.items():
        for text in texts:
            library.define(text)
            schema = torch._C.parse_schema(f"npu::{text}")
            implementation = by_name(_guarded(name, functions[name], version), schema)
            library.impl(text.partition("(")[0], implementation, "CompositeImplicitAutograd")
    return {name: getattr(torch.ops.npu, name) for name in offered}


def by_name(function: Operator, schema: torch.FunctionSchema) -> Operator:
    """Let a function be called as torch calls the kernel of an operator with this schema."""
    # torch leaves out arguments that are the schema's defaults. In some versions those are not our function's.
    names = [argument.name for argument in schema.arguments]
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}

    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        results = function(**{**defaults, **dict(zip(names, args, strict=False)), **options})
        # Later versions have more results, behind those of the earlier ones.
        return results[: len(schema.returns)] if isinstance(results, tuple) else results

    return call


def _guarded(name: str, function: Operator, version: str) -> Operator:
    restrictions = of_operator(name, version)

    @functools.wraps(function)
    def call(**given: object) -> object:
        check_devices(name, given)
        for restriction in restrictions:
            if restriction.applies(given):
                raise RuntimeError(f"{name}: {restriction.message}")
        try:
            return function(**given)
        except _REFUSED as error:
            # A program that catches what an operator raises must find it here as well.
            raise RuntimeError(f"{name}: the arguments do not fit: {error}") from error

    return call
