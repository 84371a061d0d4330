"""What is known of torch_npu's own tests: kept by test, with a reason for each failure, and shown as it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import expected
from .expected import Ends, File, differences, summarised
from .reasons import Kind, reason


def one(test: str, outcome: str, said: str = "") -> dict[str, str]:
    return {"test": test, "outcome": outcome, "reason": said, "text": ""}


def test_a_test_of_which_one_part_fails_has_failed() -> None:
    said = "NotImplementedError: torch_npu.npu_max is not implemented by the virtual Ascend"
    found = [one("a", "passed"), one("b", "passed"), one("b", "failed", said), one("b", "passed"), one("c", "skipped")]
    assert summarised("f.py", found) == File(passed=1, skipped=1, failed={"b": "not implemented: operators"})


def test_a_failure_that_no_rule_explains_is_told() -> None:
    unexplained: list[str] = []
    assert summarised("f.py", [one("a", "failed", "odd")], unexplained).failed == {"a": "unexplained"}
    assert unexplained == ["f.py::a: odd"]


def test_what_is_not_written_is_explained_by_its_name() -> None:
    said = "NotImplementedError: torch_npu.npu.MemPool is not implemented by the virtual Ascend"
    known = reason("npu/test_x.py", "T::t", said)
    assert known is not None
    assert (known.kind, known.why) == (Kind.NAMED, "`torch_npu.npu.MemPool`")


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (File(2, 1, {"a": "x"}), []),
        (File(1, 1, {"a": "x", "b": "x"}), ["f.py::b fails"]),
        (File(3, 1, {}), ["f.py::a no longer fails"]),
        (File(1, 2, {"a": "x"}), ["f.py: expected 2 passed and 1 skipped, found 1 and 2"]),
    ],
)
def test_a_test_that_ends_otherwise_is_named(found: File, lines: list[str]) -> None:
    assert differences("f.py", File(2, 1, {"a": "x"}), found) == lines


def test_a_file_of_which_nothing_is_known_differs() -> None:
    assert "nothing is expected of it" in differences("f.py", None, File(1))[0]


def test_the_same_failure_is_the_same_whatever_its_reason() -> None:
    assert differences("f.py", File(0, 0, {"a": "x"}), File(0, 0, {"a": "y"})) == []


def test_every_known_failure_has_a_reason() -> None:
    kinds = {kind.value for kind in Kind}
    texts = {text for file in expected.read().values() for text in file.failed.values()}
    assert {text.partition(": ")[0] for text in texts} <= kinds


@pytest.mark.parametrize("page", ["virtual-ascend.md", "virtual-ascend.zh-CN.md"])
def test_the_tables_of_the_docs_are_made_of_what_is_known(page: str) -> None:
    text = (expected.DOCS / page).read_text()
    assert text.partition(expected.BEGIN)[2].partition(expected.END)[0].strip() == expected.tables(expected.read())


def test_results_become_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in ("virtual-ascend.md", "virtual-ascend.zh-CN.md"):
        (tmp_path / page).write_text(f"before\n{expected.BEGIN}\nold\n{expected.END}\nafter\n")
    monkeypatch.setattr(expected, "DOCS", tmp_path)
    monkeypatch.setattr(expected, "EXPECTED", tmp_path / "expected.json")
    results = tmp_path / "results"
    results.mkdir()
    (results / "x.json").write_text(json.dumps({"file": "npu/test_x.py", "tests": [one("a", "passed")]}))
    monkeypatch.setattr("sys.argv", ["expected", str(results)])
    expected.main()
    assert expected.read() == {"npu/test_x.py": File(passed=1)}
    page = (tmp_path / "virtual-ascend.md").read_text()
    assert (page.startswith("before\n"), page.endswith("after\n")) == (True, True)
    assert "| device | ours | 1 | 0 | 0 |" in page
    results.joinpath("x.json").write_text(
        json.dumps(
            {"file": "npu/test_x.py", "tests": [one("a", "failed", "Failed to find function aclmdlRICaptureBegin")]}
        )
    )
    monkeypatch.setattr("sys.argv", ["expected", "--wheel", str(results)])
    expected.main()
    graphs = {"a": "not implemented: graphs and memory pools"}
    assert expected.read() == {"npu/test_x.py": File(passed=1, wheel=Ends(failed=graphs))}
    page = (tmp_path / "virtual-ascend.md").read_text()
    assert "| device | the wheel | 0 | 0 | 1 | 0 |" in page
    assert "| device | the wheel | 1 | not implemented: graphs and memory pools |" in page


def test_what_fails_with_ours_too_needs_no_reason_of_its_own() -> None:
    unexplained: list[str] = []
    found = summarised(
        "f.py", [one("a", "failed", "odd"), one("b", "failed", "odd")], unexplained, File(failed={"a": "x"})
    )
    assert found.failed == {"a": expected.BOTH, "b": "unexplained"}
    assert unexplained == ["f.py::b: odd"]
