"""What we ask of torch_npu's operators is what every recorded wheel's schema has; and what we call is recorded."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_npu.features import attention, fused_ops

RECORDS = sorted((Path(__file__).resolve().parents[2] / "virtual").glob("signatures*.json"))
# Operators that are called by another name than their own: what `operator` gave.
ALIASES = {"norm": "npu_rms_norm", "mlp": "npu_swiglu", "rotary": "npu_rotary_mul"}


def calls() -> Iterator[tuple[str, int, frozenset[str]]]:
    """Every call of an operator in the features: its name, how many arguments by position, which by keyword."""
    for package in (attention, fused_ops):
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    function = node.func
                    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                    name = ALIASES.get(path.stem, "") if name == "fused" else name
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


@pytest.mark.parametrize("record", RECORDS, ids=[path.stem for path in RECORDS])
@pytest.mark.parametrize(("name", "count", "keywords"), CALLS)
def test_a_call_fits_the_schema_of_the_wheel(name: str, count: int, keywords: tuple[str, ...], record: Path) -> None:
    operators = json.loads(record.read_text())["operators"]
    if name not in operators and "permute" in name:
        pytest.skip(f"{record.stem} has no {name}: upstream's code stays there")
    parameters = operators[name]
    by_position = [p["name"] for p in parameters if not p["keyword_only"]]
    assert count <= len(by_position)
    assert set(keywords) <= {p["name"] for p in parameters} - set(by_position[:count])
    needed = {p["name"] for p in parameters if "default" not in p} - set(by_position[:count])
    assert needed <= set(keywords)
