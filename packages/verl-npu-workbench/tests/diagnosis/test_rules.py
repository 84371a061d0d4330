"""Each rule names the texts that were quoted for it, and nothing else does."""

from __future__ import annotations

import functools
import json
import re

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, judge
from verl_npu_workbench.diagnosis.rules import BY_CODE, KNOWN, RULES, LogRule, Precision

from verl_npu.features.linear_attention import COST
from verl_npu.findings import Finding

from .quoted import QUOTED, Quoted

quoted = pytest.mark.parametrize("one", QUOTED, ids=lambda one: f"{one.rule}: {one.source}")
ROWS = [row for file in KNOWN.glob("*.json") for row in json.loads(file.read_text())["rules"]]
HINTS = [rule for rule in RULES if rule.precision is Precision.HINT]
VERDICTS = {
    Precision.OWN: Conclusion.CAUSE,
    Precision.EXACT: Conclusion.CAUSE,
    Precision.CODE: Conclusion.CODE,
    Precision.SYMPTOM: Conclusion.CONSEQUENCE,
    Precision.ECHO: Conclusion.CONSEQUENCE,
    Precision.GUESS: Conclusion.UNKNOWN,
}


@functools.cache
def judged(text: str) -> Diagnosis:
    return judge(text.splitlines())


def told(text: str, rules: tuple[LogRule, ...] = RULES) -> Finding | None:
    """Return a rule's finding on the error, or else the guess from the kind of error."""
    root = (judged(text) if rules is RULES else judge(text.splitlines(), rules=rules)).root
    return None if root is None else root.finding or root.guess


def name_of(text: str, rules: tuple[LogRule, ...] = RULES) -> str:
    found = told(text, rules)
    return found.code if found else ""


@quoted
def test_a_quoted_error_is_named(one: Quoted) -> None:
    assert name_of(one.text) == one.rule
    verdict = judged(one.text).verdict
    assert verdict in {VERDICTS[rule.precision] for rule in RULES if rule.code == one.rule}


@quoted
def test_without_its_rule_a_quoted_error_has_another_name_or_none(one: Quoted) -> None:
    assert name_of(one.text, tuple(rule for rule in RULES if rule.code != one.rule)) != one.rule


@quoted
def test_the_process_in_which_it_began_is_named_where_the_text_says_so(one: Quoted) -> None:
    root = judged(one.text).root
    assert root is not None
    if one.pid:
        assert root.event.process.pid == one.pid


def test_every_rule_has_a_quote_but_those_that_end_no_job() -> None:
    assert {one.rule for one in QUOTED} == {rule.code for rule in RULES} - {rule.code for rule in HINTS}


def test_every_rule_that_is_certain_has_a_quote_for_which_it_is() -> None:
    certain = {one.rule for one in QUOTED if judged(one.text).verdict is Conclusion.CAUSE}
    assert {rule.code for rule in RULES if rule.precision in (Precision.OWN, Precision.EXACT)} - certain == set()


def test_each_alternative_of_a_pattern_is_one_by_itself() -> None:
    assert all(re.compile(part) for rule in RULES for part in rule.alternatives)


def test_every_file_of_rules_is_read() -> None:
    assert sorted(row["code"] for row in ROWS) == sorted(BY_CODE)


def test_rules_have_names_of_their_own_and_say_where_they_were_seen() -> None:
    assert len({row["code"] for row in ROWS}) == len(ROWS)
    assert all(rule.seen and all(rule.seen) for rule in RULES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["code"])
def test_what_a_rule_says_is_a_sentence_without_its_end(row: dict[str, str]) -> None:
    for said in (row["means"], row["fix"]):
        assert said == said.strip()
        assert not said.endswith((".", ",", ";", ":"))


@quoted
def test_no_field_is_left_open_in_what_is_said(one: Quoted) -> None:
    found = told(one.text)
    assert found is not None
    for said in (found.why, found.fix):
        assert not any(f"{{{field}}}" in said for field in BY_CODE[one.rule].pattern.groupindex)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("huawei-not-available", "(Reward pid=7) Platform 'huawei' (PlatformNPU) is registered but not available. "),
        (
            "fla-torch-code",
            "[transformers] The fast path is not available because one of the required library is not installed. "
            "Falling back to torch implementation.",
        ),
        (
            "fla-torch-code",
            "`chunk_gated_delta_rule` is falling back to its reference PyTorch implementation because "
            "`flash-linear-attention` is not installed. This is correct but much slower; install",
        ),
        ("fla-torch-code", f"verl-npu: linear attention runs transformers' torch code, which is slow ({COST})"),
        ("own-drifted", "verl-npu: feature attention drifted: verl.workers:x is not what was locked"),
        ("own-disabled", "verl-npu: 0.1.0: verl v0.6.1; device disabled, attention pending"),
    ],
)
def test_a_hint_is_no_cause_and_is_told_beside_one(rule: str, text: str) -> None:
    alone = judge([text], growing=True)
    assert alone.verdict is Conclusion.NONE
    assert [each.name for each in alone.hints] == [rule]
    beside = judge([text, "ValueError: Total available GPUs 0 is less than total desired GPUs 2"])
    assert beside.root is not None
    assert beside.root.name == "too-few-devices"
    assert [each.name for each in beside.hints] == [rule]
