"""The bench of public threads has the form that its figures rely on, and its unread part stays unread."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion
from verl_npu_workbench.diagnosis.rules import CAUSES, KNOWN, RULES

from .bench import FOLDER, OPEN, Kind, Part, Posted, part_of, read
from .bench.measure import Answer, Outcome, ask, ask_without_own, figures, markdown
from .bench.page import PAGES, rendered

ENTRIES = [post for part in Part for post in read(part)]
CODES = {rule.code for rule in RULES}
MOST_LINES, MOST_CHARACTERS, MOST_SAID = 8, 200, 200


def flaws(post: Posted) -> list[str]:
    """Return the errors in an entry's form."""
    ended = post.label != OPEN
    checks = {
        "the thread": re.fullmatch(r"[\w.-]+/[\w.-]+#[1-9]\d*", post.thread),
        "the date": re.fullmatch(r"(20\d\d-[01]\d-[0-3]\d)?", post.date),
        "no lines": post.lines,
        "too many lines": len(post.lines) <= MOST_LINES,
        "a line that is empty, too long or several": all(
            line.strip() and len(line) <= MOST_CHARACTERS and line.splitlines() == [line] for line in post.lines
        ),
        "an unknown label": post.label in {*CODES, *CAUSES, OPEN},
        "a cause without who said so, or the other way round": bool(post.cause) is bool(post.who) is ended,
        "a quote that is too long, or missing": bool(post.said) is ended and len(post.said) <= MOST_SAID,
        "a cause that is no sentence": not ended or re.fullmatch(r"[^\n]{15,300}\.", post.cause),
    }
    return [name for name, holds in checks.items() if not holds]


@pytest.fixture
def entry() -> Posted:
    return Posted(
        repository="owner/repository",
        number=2,
        kind=Kind.ISSUE,
        date="2026-01-31",
        lines=("RuntimeError: NPU out of memory.",),
        label="npu-memory",
        cause="The batch was too large.",
        who="somebody",
        said="use a smaller batch",
    )


def test_entries_have_their_form() -> None:
    assert {post.thread: wrong for post in ENTRIES if (wrong := flaws(post))} == {}


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        ({"number": 0}, "the thread"),
        ({"date": "January"}, "the date"),
        ({"lines": ()}, "no lines"),
        ({"lines": ("line",) * 9}, "too many lines"),
        ({"lines": ("x" * 201,)}, "a line that is empty, too long or several"),
        ({"label": "no-such-code"}, "an unknown label"),
        ({"who": ""}, "a cause without who said so, or the other way round"),
        ({"said": "x" * 201}, "a quote that is too long, or missing"),
        ({"cause": "memory"}, "a cause that is no sentence"),
    ],
)
def test_a_fault_of_form_is_seen(entry: Posted, changed: dict[str, object], flaw: str) -> None:
    fields = {name: getattr(entry, name) for name in Posted.__slots__}
    assert flaws(entry) == []
    assert flaw in flaws(Posted(**{**fields, **changed}))


@pytest.mark.parametrize("part", [Part.KNOWN, Part.UNREAD])
def test_a_part_is_what_the_numbers_say(part: Part) -> None:
    assert [post.thread for post in read(part) if part_of(post.number) is not part] == []


def test_a_further_thread_is_in_no_other_part() -> None:
    others = {post.thread for part in (Part.KNOWN, Part.UNREAD) for post in read(part)}
    assert sorted(others & {post.thread for post in read(Part.FURTHER)}) == []


def test_a_thread_with_an_even_number_is_known() -> None:
    assert (part_of(10), part_of(11)) == (Part.KNOWN, Part.UNREAD)


def test_each_file_is_one_repository_in_order() -> None:
    for file in FOLDER.glob("*/*.jsonl"):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert {row["repository"] for row in rows} == {file.stem.replace("+", "/")}
        assert [row["number"] for row in rows] == sorted(row["number"] for row in rows), file


def test_nothing_is_there_twice() -> None:
    assert len({(post.thread, post.lines) for post in ENTRIES}) == len(ENTRIES)


def test_no_rule_was_made_from_an_unread_thread() -> None:
    named = set(re.findall(r"[\w.-]+/[\w.-]+#\d+", "".join(Path(file).read_text() for file in KNOWN.glob("*.json"))))
    assert sorted(named & {post.thread for post in read(Part.UNREAD)}) == []


def test_causes_without_a_rule_are_named_once_and_used() -> None:
    assert sorted(set(CAUSES) & CODES) == []
    assert sorted(set(CAUSES) - {post.label for post in ENTRIES}) == []


def test_the_family_of_a_rule_is_a_label() -> None:
    assert {family for rule in RULES for family in rule.families} <= {*CAUSES, *CODES}


# The measurements.


@pytest.mark.parametrize(
    ("label", "verdict", "named", "outcome"),
    [
        ("npu-memory", Conclusion.CAUSE, "npu-memory", Outcome.RIGHT),
        ("engine-defect", Conclusion.CAUSE, "mm-cache", Outcome.RIGHT),
        ("engine-defect", Conclusion.CODE, "engine-mistake", Outcome.LIKELIEST),
        ("vllm-pair", Conclusion.CODE, "engine-mistake", Outcome.AMONG),
        ("npu-memory", Conclusion.CODE, "engine-mistake", Outcome.VAGUE),
        ("hccl-group", Conclusion.CODE, "hccl-group", Outcome.LIKELIEST),
        ("verl-defect", Conclusion.CAUSE, "mm-cache", Outcome.WRONG),
        ("engine-dead", Conclusion.CONSEQUENCE, "engine-dead", Outcome.RIGHT),
        ("npu-memory", Conclusion.CAUSE, "host-memory", Outcome.WRONG),
        (OPEN, Conclusion.CAUSE, "host-memory", Outcome.UNPROVED),
        ("npu-memory", Conclusion.CODE, "acl-failed", Outcome.VAGUE),
        ("npu-memory", Conclusion.CONSEQUENCE, "engine-dead", Outcome.VAGUE),
        ("npu-memory", Conclusion.UNKNOWN, "", Outcome.UNKNOWN),
        ("npu-memory", Conclusion.NONE, "", Outcome.NONE),
    ],
)
def test_an_answer_is_worth_what_the_thread_says(
    label: str, verdict: Conclusion, named: str, outcome: Outcome
) -> None:
    assert Answer(label, verdict, named).outcome is outcome


def test_the_lines_are_asked_about_as_they_were_posted(entry: Posted) -> None:
    assert figures(ask([entry], rules=())) == {Outcome.UNKNOWN: 1}
    assert [answer.label for answer in ask([entry])] == ["npu-memory"]


def test_a_thread_can_be_asked_about_without_the_rules_that_were_written_from_it_alone(entry: Posted) -> None:
    rule = next(rule for rule in RULES if rule.code == "npu-memory")
    own, shared = (dataclasses.replace(rule, seen=seen) for seen in ((entry.thread,), (entry.thread, "elsewhere")))
    assert [answer.named for answer in ask_without_own([entry], [own])] == [""]
    assert [answer.named for answer in ask_without_own([entry], [shared])] == ["npu-memory"]


def test_the_table_counts_what_was_said() -> None:
    answers = [
        Answer("npu-memory", Conclusion.CAUSE, "npu-memory"),
        Answer("npu-memory", Conclusion.NONE, ""),
        Answer("aborted-answers", Conclusion.NONE, ""),
        Answer(OPEN, Conclusion.UNKNOWN, ""),
    ]
    table = markdown("known", answers)
    assert "| named rightly | 1 | 33.3% | 0 |" in table
    assert "| `npu-memory` | 2 | npu-memory 1, none 1 |" in table
    assert "2 of these threads have a cause that a rule means; 1 of them are named." in table


@pytest.mark.parametrize("language", PAGES)
def test_the_figures_in_the_pages_are_those_of_the_rules(language: str) -> None:
    # Compared without showing the differences, because the unread part stays unread.
    current = PAGES[language].read_text(encoding="utf-8") == rendered(language)
    assert current, "run python -m tests.diagnosis.bench --write"


def test_figures_that_are_old_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "page.md"
    old.write_text(re.sub(r"\d+ \(\d+\.\d%\)", "0 (0.0%)", PAGES["en"].read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setitem(PAGES, "en", old)
    stale = old.read_text(encoding="utf-8") != rendered("en")
    assert stale
