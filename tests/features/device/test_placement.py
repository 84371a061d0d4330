"""Resource pools ask for NPUs, and a job that cannot be placed ends with an error.

Workers find the index of their own NPU among the NPUs that they see.
"""

from __future__ import annotations

import time

import pytest

from verl_npu.errors import LaunchError, SettingError
from verl_npu.features.device import refuse_job_that_cannot_be_placed, request_npus_not_gpus
from verl_npu.features.device.placement import ordinal


class Group:
    """A stand-in for Ray's placement group that is placed only after a number of waits."""

    def __init__(self, placed_after: int) -> None:
        self.waits = placed_after

    def wait(self, timeout_seconds: float) -> bool:
        self.waits -= 1
        return self.waits < 0


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch):
    ray = pytest.importorskip("ray")
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0, "NPU": 2.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0, "NPU": 2.0})
    removed: list[object] = []
    monkeypatch.setattr(ray.util, "remove_placement_group", removed.append)
    return nodes, removed


BUNDLE = {"CPU": 1, "NPU": 1}


def test_a_group_that_fits_is_made_as_upstream_asked(ray) -> None:
    seen = []

    def original(bundles, strategy, **kwargs):
        seen.append((bundles, strategy, kwargs))
        return Group(0)

    group = refuse_job_that_cannot_be_placed(
        original, bundles=[BUNDLE] * 2, strategy="STRICT_PACK", name="n", lifetime=None
    )
    assert isinstance(group, Group)
    assert seen == [([BUNDLE] * 2, "STRICT_PACK", {"name": "n", "lifetime": None})]


@pytest.mark.parametrize(
    ("bundles", "fix"),
    [
        ([{"CPU": 3, "NPU": 1}] * 2, "num_cpus"),
        ([{"CPU": 1, "NPU": 1}] * 3, "n_gpus_per_node"),
        ([{"CPU": 1, "GPU": 1}], "trainer.device"),
    ],
    ids=["CPUs", "NPUs", "GPUs"],
)
def test_a_group_that_no_node_can_hold_is_refused_before_it_is_made(ray, bundles, fix: str) -> None:
    def original(*args, **kwargs):
        raise AssertionError("asked Ray all the same")

    with pytest.raises(LaunchError, match="cannot be placed: expected ") as error:
        refuse_job_that_cannot_be_placed(original, bundles, "STRICT_PACK")
    assert fix in str(error.value)
    assert "found 2" in str(error.value)
    assert "in the cluster" in str(error.value)
    assert "\n" not in str(error.value)


def test_two_half_nodes_do_not_hold_a_strictly_packed_group(ray) -> None:
    nodes, _ = ray
    nodes.append({"Alive": True, "Resources": {"CPU": 2.0, "NPU": 2.0}})
    with pytest.raises(LaunchError):
        refuse_job_that_cannot_be_placed(lambda *a, **k: Group(0), [BUNDLE] * 3, "STRICT_PACK")
    assert refuse_job_that_cannot_be_placed(lambda *a, **k: Group(0), [BUNDLE] * 3, "PACK")


def test_a_dead_node_does_not_count(ray) -> None:
    nodes, _ = ray
    nodes[0]["Alive"] = False
    with pytest.raises(LaunchError, match="no node"):
        refuse_job_that_cannot_be_placed(lambda *a, **k: Group(0), [BUNDLE], "PACK")


def test_a_group_that_is_not_placed_in_time_is_removed_and_refused(ray, monkeypatch) -> None:
    _, removed = ray
    monkeypatch.setenv("VERL_NPU_PLACEMENT_TIMEOUT", "0.01")
    group = Group(10**6)

    def slow(timeout_seconds: float) -> bool:
        time.sleep(0.02)
        return False

    group.wait = slow
    with pytest.raises(LaunchError, match=r"found 1 CPU, 2 NPU free after.*VERL_NPU_PLACEMENT_TIMEOUT"):
        refuse_job_that_cannot_be_placed(lambda *a, **k: group, [BUNDLE], "PACK")
    assert removed == [group]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_none_is_refused(ray, monkeypatch, text: str) -> None:
    monkeypatch.setenv("VERL_NPU_PLACEMENT_TIMEOUT", text)

    def original(*args, **kwargs):
        raise AssertionError("made a group all the same")

    with pytest.raises(SettingError, match="VERL_NPU_PLACEMENT_TIMEOUT"):
        refuse_job_that_cannot_be_placed(original, [BUNDLE], "PACK")


@pytest.mark.parametrize(("given", "asked"), [("cuda", "npu"), ("npu", "npu"), ("cpu", "cpu")])
def test_a_pool_asks_for_npus_where_it_would_ask_for_gpus(given: str, asked: str) -> None:
    seen = []
    request_npus_not_gpus(lambda *args: seen.append(args), "pool", device_name=given)
    assert seen == [("pool", "STRICT_PACK", None, asked)]


@pytest.mark.parametrize(
    ("assigned", "visible", "index"),
    [("3", None, 3), ("3", "1,3", 1), ("1", "1,3", 0), ("0", "0", 0), ("2", "3, 2", 1)],
)
def test_an_npu_has_the_index_of_its_place_among_the_visible_ones(assigned: str, visible: str, index: int) -> None:
    assert ordinal(assigned, visible) == index


def test_an_npu_that_the_worker_cannot_see_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"NPU 2, which Ray assigned.*'1,3'.*before you run `ray start`"):
        ordinal("2", "1,3")
