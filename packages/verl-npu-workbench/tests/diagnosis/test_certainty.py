"""A cause is certain only if its rule matches no other package's error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, judge
from verl_npu_workbench.diagnosis.rules import RULES, LogRule, Precision

from .form import bare
from .quoted import QUOTED, raised

CERTAIN = [rule for rule in RULES if rule.precision is Precision.EXACT]
FOREIGN: dict[str, list[str]] = json.loads(Path(__file__).with_name("foreign.json").read_text("utf-8"))
"""Errors of packages that no rule is about, by package: most of them printed here, some seen in public."""
TRUE_FOR_ANY_CALLER = {
    "huggingface_hub": {"hub-offline"},
    "llamafactory": {"lora-rank"},
    "pandas": {"data-file"},
    "pyarrow": {"data-file"},
    "transformers": {"transformers-model"},
    "wandb": {"tracker"},
}
"""Rules whose sentence is true of the package's own error, whoever called it."""
BOTH_TRUE = {
    ("flash-attn-missing", "flash-attn-of-verl"),
    ("flash-attn-missing", "flash-attn-placeholder"),
    ("npu-memory", "npu-memory-garbage"),
    ("npu-memory", "npu-workspace-memory"),
    ("unknown-setting", "rollout-n-quoted"),
}
"""Rules that are rightly certain of another rule's text; the other one, asked first, says more about it."""


@pytest.mark.parametrize("rule", CERTAIN, ids=lambda one: one.code)
def test_a_rule_that_is_certain_needs_a_frame_or_words_of_its_own(rule: LogRule) -> None:
    assert bare(rule) == []


@pytest.mark.parametrize(
    "pattern",
    [
        "std::bad_alloc",
        "No space left on device",
        "KeyError: 'data_source'",
        r"NPU\w{1,60}\(\) got an unexpected keyword argument '\w+'",
        "object has no attribute '_dump_executor'",
        "torch_npu is here|MemoryError",
    ],
)
def test_a_pattern_that_any_program_may_write_is_bare(pattern: str) -> None:
    rule = next(rule for rule in CERTAIN if not rule.raised_in and not rule.owners)
    assert bare(LogRule(**{**{name: getattr(rule, name) for name in FIELDS}, "alternatives": (pattern,)})) == [pattern]


FIELDS = (*LogRule.__mro__[1].__slots__, *LogRule.__slots__)


def test_no_rule_is_certain_of_the_text_of_another() -> None:
    others = {
        (rule.code, one.rule)
        for one in QUOTED
        for rule in CERTAIN
        if rule.code != one.rule and rule.pattern.search(one.text)
        if judge(one.text.splitlines(), rules=(rule,)).verdict is Conclusion.CAUSE
    }
    assert others == BOTH_TRUE


def test_there_are_as_many_foreign_errors_as_is_said() -> None:
    assert sum(map(len, FOREIGN.values())) >= 300


@pytest.mark.parametrize("package", FOREIGN)
def test_no_cause_is_certain_of_an_error_that_no_rule_is_about(package: str) -> None:
    wrong = {}
    for error in FOREIGN[package]:
        for text in (error, raised(error, f"/opt/{package}/{package}/core.py")):
            said = judge(text.splitlines())
            if (
                said.verdict is Conclusion.CAUSE
                and said.root
                and said.root.name not in TRUE_FOR_ANY_CALLER.get(package, ())
            ):
                wrong[text] = said.root.name
    assert wrong == {}
