from __future__ import annotations

import json
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, diagnose

from verl_npu.errors import SourceError

PORT = "RuntimeError: the port of the device is bound by a neighbour"


def report(path: Path, code: str, text: str, place: str = "worker-node7 device-3") -> Path:
    """Write a report with one fault, in the format of ascend-fd 26.1.0."""
    seen = {"event_code": code, "key_info": text, "source_device": "3", "source_file": "plog-1.log"}
    fault = {
        "code": code,
        "cause_en": "the port is bound.",
        "suggestion_en": ["1. Look for it;", "2. End it."],
        "event_attr": {place: [seen]} if text else {},
    }
    path.write_text(json.dumps({"Version": "26.1.0", "Knowledge_Graph": {"analyze_success": True, "fault": [fault]}}))
    return path


def test_a_fault_is_a_cause_with_what_ascend_fd_says_of_it(tmp_path: Path) -> None:
    said = diagnose([report(tmp_path / "diag_report.json", "AISW_CANN_HCCL_001", PORT)])
    assert said.verdict is Conclusion.CAUSE
    assert said.root is not None
    assert said.root.finding is not None
    assert (said.root.name, said.root.event.error, said.root.event.log) == ("AISW_CANN_HCCL_001", PORT, "plog-1.log")
    assert (said.root.event.process.ip, said.root.event.process.device) == ("node7", "3")
    assert (said.root.finding.why, said.root.finding.fix) == ("the port is bound", "1. Look for it; 2. End it")


def test_a_rule_of_ours_that_names_the_cause_comes_first(tmp_path: Path) -> None:
    text = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)"
    said = diagnose(
        [report(tmp_path / "diag_report.json", "AISW_Framework_Custom_01", text, "worker-local device-Unknown")]
    )
    assert said.root is not None
    assert said.root.name == "npu-memory"
    assert (said.root.event.process.ip, said.root.event.process.device) == ("", "")


@pytest.mark.parametrize("code", ["AISW_CANN_ERRCODE_Custom_EZ9999", "AISW_TRACEBACK_AssertionError"])
def test_a_code_without_a_cause_is_a_code(tmp_path: Path, code: str) -> None:
    assert diagnose([report(tmp_path / "diag_report.json", code, PORT)]).verdict is Conclusion.CODE


def test_it_stands_beside_the_log_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("(TaskRunner pid=1) step:3 - actor/entropy:0.3\nEI0006\n")
    report(tmp_path / "diag_report.json", "AISW_CANN_HCCL_001", PORT)
    said = diagnose([tmp_path])
    assert said.root is not None
    assert (said.verdict, said.root.name, said.steps) == (Conclusion.CAUSE, "AISW_CANN_HCCL_001", 3)


def test_a_report_without_a_fault_is_no_all_clear(tmp_path: Path) -> None:
    report(tmp_path / "diag_report.json", "NORMAL_OR_UNSUPPORTED", "")
    with pytest.raises(SourceError, match="a report without a fault"):
        diagnose([tmp_path / "diag_report.json"])
    (tmp_path / "train.log").write_text("(TaskRunner pid=1) step:3 - actor/entropy:0.3\n")
    assert diagnose([tmp_path]).verdict is Conclusion.UNKNOWN


@pytest.mark.parametrize("text", ['{"Knowledge_Graph": 1}', "[1, 2]", '{"Knowledge_Graph": ', "[" * 100_000])
def test_what_is_no_report_is_read_as_a_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(f"{text}\nAssertionError: the batch is not what it should be\n")
    said = diagnose([tmp_path / "rows.json"])
    assert said.root is not None
    assert said.root.event.line == 2


@pytest.mark.parametrize("fault", [None, {}, {"code": 3, "event_attr": []}, {"event_attr": {"worker-0": [None, 3]}}])
def test_a_report_of_another_form_is_no_traceback_of_ours(tmp_path: Path, fault: object) -> None:
    (tmp_path / "diag_report.json").write_text(json.dumps({"Knowledge_Graph": {"fault": [fault]}}))
    (tmp_path / "train.log").write_text("(TaskRunner pid=1) step:3 - actor/entropy:0.3\n")
    assert diagnose([tmp_path]).root is None


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        diagnose([tmp_path / "diag_report.json"])
