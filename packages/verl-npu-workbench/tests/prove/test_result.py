from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from verl_npu_workbench.prove.content import read, to_json
from verl_npu_workbench.prove.result import Check, StageResult, Verdict, judged

from verl_npu.errors import CommandError

PASSED = Check(name="one", verdict=Verdict.PASSED, found="right")
FAILED = Check(name="two", verdict=Verdict.FAILED, found="3", expected="2", meaning="sums are wrong")
LEFT_OUT = Check(name="three", verdict=Verdict.NOT_POSSIBLE, found="there is one NPU")


@pytest.mark.parametrize(
    ("checks", "ended", "verdict", "cause"),
    [
        ([PASSED], "", Verdict.PASSED, ""),
        ([PASSED, LEFT_OUT], "", Verdict.PASSED, ""),
        ([PASSED, FAILED], "", Verdict.FAILED, "two: 3"),
        ([PASSED], "no end after 3 s", Verdict.FAILED, "no end after 3 s"),
        ([LEFT_OUT], "", Verdict.NOT_POSSIBLE, "there is one NPU"),
        ([], "", Verdict.NOT_POSSIBLE, "there is nothing to check here"),
        ([FAILED] * 5, "", Verdict.FAILED, "two: 3; two: 3; two: 3; and 2 more"),
    ],
)
def test_checks_come_to_a_verdict(checks: list[Check], ended: str, verdict: Verdict, cause: str) -> None:
    found = judged("device", checks, 1.0, 2.0, ended)
    assert (found.verdict, found.cause) == (verdict, cause)
    assert found.meaning == ("sums are wrong" if FAILED in checks else "")


@pytest.mark.parametrize(
    ("checks", "verdict", "cause"),
    [
        ([PASSED], Verdict.NOT_POSSIBLE, "the machine was too busy"),
        ([PASSED, FAILED], Verdict.FAILED, "the machine was too busy; two: 3"),
    ],
)
def test_a_stage_that_was_left_has_not_failed_by_that(checks: list[Check], verdict: Verdict, cause: str) -> None:
    found = judged("device", checks, 1.0, 2.0, left_out="the machine was too busy")
    assert (found.verdict, found.cause) == (verdict, cause)


def test_a_stage_is_read_as_it_was_written() -> None:
    written = replace(judged("device", [PASSED, FAILED], 1.0, 2.0), waited=0.5)
    assert read(StageResult, json.loads(json.dumps(to_json(written))), "a bundle") == written


def test_a_stage_that_was_written_before_what_is_waited_was_is_read() -> None:
    written = judged("device", [PASSED], 1.0, 2.0)
    content = {name: part for name, part in to_json(written).items() if name != "waited"}
    assert read(StageResult, content, "a bundle") == written


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 3}, "name"),
        ({"name": "x" * 2001}, "name"),
        ({"verdict": "fine"}, "verdict"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": True}, "seconds"),
        ({"seconds": 10**400}, "seconds"),
        ({"figures": {"GB/s": "fast"}}, "figures.GB/s"),
        ({"figures": []}, "figures"),
        ({"figures": {"x" * 2001: 1.0}}, "figures"),
        ({"found": None}, "found"),
    ],
)
def test_what_is_not_as_it_is_written_here_is_refused_by_its_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CommandError, match=rf"^a bundle: expected {re.escape(named)} to be "):
        read(Check, to_json(PASSED) | change, "a bundle")


def test_a_list_that_is_too_long_is_refused() -> None:
    content = to_json(judged("device", [], 1.0, 2.0)) | {"checks": [None] * 20_001}
    with pytest.raises(CommandError, match="at most 20000 parts"):
        read(StageResult, content, "a bundle")
