"""Every operator has the parameters of the real one: names, order, defaults and which are by keyword only.

`signatures.json` records them from the schemas that the torch_npu wheel of that version registers.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.virtual

RECORDED = json.loads((Path(__file__).parent / "signatures.json").read_text())
OPERATORS: dict[str, list[dict[str, Any]]] = RECORDED["operators"]
WORDS = {"None": None, "True": True, "False": False}


def recorded(name: str) -> Iterator[tuple[str, bool, Any]]:
    for parameter in OPERATORS[name]:
        yield parameter["name"], parameter["keyword_only"], value(parameter.get("default"))


def value(text: str | None) -> Any:
    """A schema's default; `empty` where there is none."""
    if text is None:
        return inspect.Parameter.empty
    if text in WORDS:
        return WORDS[text]
    return text[1:-1] if text[0] in "\"'" else float(text)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_parameters_of_the_real_one(name: str) -> None:
    from verl_npu.virtual import operators

    parameters = inspect.signature(getattr(operators, name)).parameters.values()
    ours = [(p.name, p.kind is inspect.Parameter.KEYWORD_ONLY, p.default) for p in parameters]
    assert ours == list(recorded(name))


def test_every_operator_is_recorded() -> None:
    from verl_npu.virtual import operators

    assert set(OPERATORS) == set(operators.__all__)
