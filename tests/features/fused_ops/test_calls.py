"""Every recorded wheel's schemas accept our calls of torch_npu's operators, and each called operator is recorded."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_npu.features import attention, fused_ops

torch = pytest.importorskip("torch")


def recorded() -> dict[str, dict[str, list[list[dict[str, Any]]]]]:
    """Return each operator's schemas as lists of parameters, for each version of torch_npu."""
    path = Path(__file__).resolve().parents[2] / "virtual" / "signatures.json"
    if path.is_file():
        record = json.loads(path.read_text())
        return {record["torch_npu"]: {name: [parameters] for name, parameters in record["operators"].items()}}
    from virtual_ascend.operators import schemas

    return {
        version: {name: [_parameters(text) for text in texts] for name, texts in schemas.of_version(version).items()}
        for version in schemas.versions()
    }


def _parameters(text: str) -> list[dict[str, Any]]:
    arguments = torch._C.parse_schema(f"npu::{text}").arguments
    return [
        {"name": a.name, "keyword_only": a.kwarg_only, **({"default": ""} if a.has_default_value() else {})}
        for a in arguments
    ]


RECORDED = recorded()


def calls() -> Iterator[tuple[str, int, frozenset[str]]]:
    """Yield each operator call in the features: its name, its number of positional arguments, and its keywords."""
    for package in (attention, fused_ops):
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    function = node.func
                    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                    if name.startswith("npu_") and "." not in name:
                        yield name, len(node.args), frozenset(k.arg for k in node.keywords if k.arg)


CALLS = sorted({(name, count, tuple(sorted(keywords))) for name, count, keywords in calls()})


def test_all_operators_of_the_feature_are_found() -> None:
    assert {name for name, *_ in CALLS} == {
        "npu_grouped_matmul",
        "npu_moe_token_permute",
        "npu_moe_token_unpermute",
        "npu_rms_norm",
        "npu_rotary_mul",
        "npu_swiglu",
    }


@pytest.mark.parametrize("version", RECORDED)
@pytest.mark.parametrize(("name", "count", "keywords"), CALLS)
def test_a_call_fits_a_schema_of_the_wheel(name: str, count: int, keywords: tuple[str, ...], version: str) -> None:
    # Where a wheel lacks a whole operator, upstream's code stays; the feature never checks for a keyword.
    for parameters in RECORDED[version].get(name, [])[-1:]:
        by_position = [p["name"] for p in parameters if not p["keyword_only"]]
        assert count <= len(by_position)
        assert set(keywords) <= {p["name"] for p in parameters} - set(by_position[:count])
        needed = {p["name"] for p in parameters if "default" not in p} - set(by_position[:count])
        assert needed <= set(keywords)


def test_each_operator_is_in_some_recorded_wheel() -> None:
    assert {name for name, *_ in CALLS} <= {name for operators in RECORDED.values() for name in operators}
