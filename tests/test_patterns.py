"""No regular expression takes more than its share of time on any text, which may be a stranger's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_npu.tools.diagnosis.rules import RULES
from verl_npu.tools.plan import model
from verl_npu.tools.rehearse import outcome, small_model

from .patterns import Pattern, attacks, find, grows

ROOT = Path(__file__).resolve().parents[1]
FOUND, MADE = find(ROOT, ("verl_npu", "packages/virtual-ascend/virtual_ascend"))
TABLES = {
    "verl_npu/tools/diagnosis/event.py: part": [
        Pattern(where, text, uses={"search"})
        for text, where in {text: rule.code for rule in RULES for text in rule.alternatives}.items()
    ],
    "verl_npu/tools/diagnosis/rules.py: row[key]": [
        Pattern(f"{rule.code}, beside", beside.pattern, uses={"search"})
        for rule in RULES
        for beside in (rule.raised_in, rule.beside)
        if beside is not None
    ],
    "verl_npu/tools/plan/model.py: each.pattern": [
        Pattern(f"published.json: {each.name}", each.pattern, uses={"search"}) for each in model.PUBLISHED
    ],
    "verl_npu/tools/rehearse/outcome.py: pattern": [
        Pattern(f"outcome.py: {phase}", text, uses={"match"}) for phase, text in outcome._PHASES
    ],
    "verl_npu/tools/rehearse/small_model.py: each.pattern": [
        Pattern(f"architectures.json: {each.name}", each.pattern, uses={"search"})
        for each in small_model.ARCHITECTURES
    ],
}
"""What a module takes from a table, by where it does."""
AS_IT_RUNS = (
    # Whole alternatives of the table above, joined.
    "verl_npu/tools/diagnosis/rules.py: '|'.join(alternatives)",
    # An escaped text, of which no part repeats.
    "verl_npu/tools/diagnosis/ascend_fd.py: re.escape(",
    # On sentences of our own.
    "verl_npu/tools/diagnosis/rules.py: f' ",
    # Of names that we know, and nothing else that repeats than blanks or digits.
    "verl_npu/tools/doctor/site.py: f'(?m)^{name}",
    "verl_npu/tools/jobs/settings.py: pattern",
    # Of the names of a module, on the lines of its source.
    "verl_npu/registry/source/lookup.py: ",
    # What PEFT and vLLM take for patterns themselves, on the names of a model's layers.
    "verl_npu/simulation/rollout/weights.py: ",
)
"""How those begin that are made as a program runs, and why none of them takes long."""
ALL = [*FOUND, *(pattern for table in TABLES.values() for pattern in table)]


def test_every_pattern_is_found_in_the_source_or_in_a_table() -> None:
    assert len(ALL) > 250
    assert [each for each in MADE if each not in TABLES and not each.startswith(AS_IT_RUNS)] == []


@pytest.mark.parametrize("pattern", ALL, ids=[pattern.where for pattern in ALL])
def test_a_pattern_takes_its_share_of_time_on_its_worst_text(pattern: Pattern) -> None:
    assert [text(40) for text in attacks(pattern) if grows(pattern, text)] == []


@pytest.mark.parametrize(
    "text",
    [
        r"(a+)+$",
        r"(?:a|a)*b",
        r"\d+\.?\d*$",
        r"from .* import",
        r"\s+$",
        r"(?P<library>\S*\.so\S*): cannot allocate",
        r"\S.*?:\d+\.?\d*(?=\s|$)",
    ],
)
def test_a_pattern_that_takes_long_is_found_out(text: str) -> None:
    pattern = Pattern("here", text)
    assert any(grows(pattern, attack) for attack in attacks(pattern)), re.compile(text)
