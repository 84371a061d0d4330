from __future__ import annotations

import json

import pytest
from verl_npu_workbench.doctor import cluster
from verl_npu_workbench.doctor.cluster import Difference, as_json, differences, examine_nodes, read

from verl_npu.errors import FleetError
from verl_npu.findings import Severity, ok, warning

BAD = warning("VLLM_USE_V1", "'0'", expected="1", why="w", fix="f")


def test_only_what_differs_is_said_with_the_nodes_of_each() -> None:
    one = [ok("torch", "2.8.0"), ok("driver", "25.5.0")]
    other = [ok("torch", "2.7.1"), ok("driver", "25.5.0")]
    found = differences({"10.0.0.1": one, "10.0.0.2": other, "10.0.0.3": one})
    assert found == [Difference("torch", {"2.8.0": ("10.0.0.1", "10.0.0.3"), "2.7.1": ("10.0.0.2",)})]


def test_what_is_wrong_on_one_node_alone_is_a_difference() -> None:
    (found,) = differences({"a": [], "b": [BAD]})
    assert found.found == {"no problem": ("a",), "'0'": ("b",)}


def test_what_each_node_has_of_its_own_is_none() -> None:
    assert differences({"a": [ok("shared-memory", "64 GiB")], "b": [ok("shared-memory", "32 GiB")]}) == []


def test_findings_survive_the_way_from_a_node() -> None:
    assert read(json.dumps([as_json(BAD)]), "a") == [BAD]


@pytest.mark.parametrize("answer", ["", "No module named verl_npu", '[{"name": 1}]', '[{"verdict": "odd"}]'])
def test_a_node_that_answers_otherwise_is_named(answer: str) -> None:
    with pytest.raises(FleetError, match=r"install the same version of verl-npu on 10\.0\.0\.2"):
        read(answer, "10.0.0.2")


def test_that_ray_hides_the_npus_from_the_task_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    arguments = ["--only", "ASCEND_RT_VISIBLE_DEVICES"]
    assert [each.severity for each in read(cluster._run(arguments), "here")] == [Severity.OK]
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "zero")
    assert [each.code for each in read(cluster._run(arguments), "here")] == ["ASCEND_RT_VISIBLE_DEVICES"]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    # Nobody listens there, and Ray would go on trying for minutes.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")


def test_an_address_where_nobody_answers_is_given_up(ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REACH", 1.0)
    with pytest.raises(
        FleetError, match=r"no answer from 127\.0\.0\.1:1 within 1 s; start Ray with `ray start --head`"
    ):
        examine_nodes([])


def test_what_ray_says_is_passed_on(ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "no-such-scheme://here")
    with pytest.raises(FleetError, match=r"found \w+Error: .*; start Ray with"):
        examine_nodes([])
