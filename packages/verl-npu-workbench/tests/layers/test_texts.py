"""The texts of a comparison are translated, although the programs of a comparison pass them on."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from verl_npu_workbench import translations
from verl_npu_workbench.layers import causes, comparing, computing, judging
from verl_npu_workbench.layers.report import lines_of

from verl_npu.features.weight_sync.engines import proof
from verl_npu.language import CHINESE, Message, add_catalogue, speaking, translate

from .faults import FAULTS, found

WORDS = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
CHINESE_CHARACTER = re.compile(r"[\u4e00-\u9fff]")


def unmarked(source: str) -> Iterator[str]:
    """Yield the texts of two or more words in some code that are neither marked nor a docstring."""
    tree = ast.parse(source)
    other = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("_", "ngettext"):
            other |= {id(each) for each in call.args}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in other:
            yield from WORDS.findall(each.value) and [each.value]


@pytest.mark.parametrize(
    "code", [causes, comparing, computing, judging, proof.explain], ids=lambda code: code.__name__.rpartition(".")[2]
)
def test_each_text_is_marked_for_translation(code: ModuleType) -> None:
    assert [*unmarked(inspect.getsource(code))] == []


def test_a_cause_that_is_not_marked_is_found() -> None:
    assert [*unmarked('yield Cause(Reason.BASE, f"another base of {base}", edit)')] == ["another base of "]


@pytest.mark.parametrize(
    "each", [*causes.Reason, *comparing.Side, *judging.Verdict], ids=lambda each: f"{type(each).__name__}.{each.name}"
)
def test_each_name_is_marked_for_translation(each: causes.Reason) -> None:
    assert isinstance(each.value, Message)


def test_a_comparison_is_shown_in_chinese() -> None:
    (fault,) = (each for each in FAULTS if each.name == "stale queries")
    add_catalogue(translations.DOMAIN, str(translations.LOCALE))
    passed_on = pickle.loads(pickle.dumps(comparing.content(found(fault), [])))
    with speaking(CHINESE):
        said = [translate(line) for line in lines_of(passed_on)]
    assert said[0].startswith("推理引擎，layers.1.self_attn.q_proj：不同。")
    assert said[1] == "原因：另一份权重：layers.1.self_attn.q_proj.weight：这一端持有其他值。"
    assert [line for line in said if not CHINESE_CHARACTER.search(line)] == []
