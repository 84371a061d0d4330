from __future__ import annotations

import pytest

from verl_npu.features.device import DeviceContradictionError, PlacementError
from verl_npu.features.device.ordinal import ordinal
from verl_npu.features.device.placement import npus_are_asked_for, placed_or_refused
from verl_npu.features.device.setting import ascend_unless_cpu, composed_device, npu_unless_cpu, resolve_device
from verl_npu.features.device.verdict import cuda_is_not_here, software_decides

omegaconf = pytest.importorskip("omegaconf")


def config(device: str | None, *overrides: str):
    trainer = {} if device is None else {"trainer": {"device": device}}
    return omegaconf.OmegaConf.create({**trainer, "hydra": {"overrides": {"task": list(overrides)}}})


def test_the_default_becomes_npu() -> None:
    composed = config("cuda")
    assert composed_device(lambda task, cfg: cfg.trainer.device, None, composed) == "npu"


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_what_the_user_set_stays(device: str) -> None:
    composed = config(device, f"trainer.device={device}")
    resolve_device(composed, composed.hydra.overrides.task)
    assert composed.trainer.device == device


def test_an_application_without_a_trainer_is_left_alone() -> None:
    composed = config(None)
    before = composed.copy()
    resolve_device(composed, ())
    assert composed == before


@pytest.mark.parametrize("override", ["trainer.device=cuda", "+trainer.device=cuda", "++trainer.device=cuda"])
def test_cuda_asked_for_by_name_is_a_contradiction(override: str) -> None:
    composed = config("cuda", "trainer.nnodes=1", override)
    with pytest.raises(DeviceContradictionError, match=r"has no CUDA.*VERL_NPU_DISABLE=device") as error:
        resolve_device(composed, composed.hydra.overrides.task)
    assert override in str(error.value)
    assert composed.trainer.device == "cuda"


class Group:
    """Stands in for Ray's placement group where the fault is one of waiting."""

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

    group = placed_or_refused(original, bundles=[BUNDLE] * 2, strategy="STRICT_PACK", name="n", lifetime=None)
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

    with pytest.raises(PlacementError, match="cannot be placed: it asks for") as error:
        placed_or_refused(original, bundles, "STRICT_PACK")
    assert fix in str(error.value)
    assert "the cluster has 2" in str(error.value)
    assert "\n" not in str(error.value)


def test_two_half_nodes_do_not_hold_a_strictly_packed_group(ray) -> None:
    nodes, _ = ray
    nodes.append({"Alive": True, "Resources": {"CPU": 2.0, "NPU": 2.0}})
    with pytest.raises(PlacementError):
        placed_or_refused(lambda *a, **k: Group(0), [BUNDLE] * 3, "STRICT_PACK")
    assert placed_or_refused(lambda *a, **k: Group(0), [BUNDLE] * 3, "PACK")


def test_a_dead_node_does_not_count(ray) -> None:
    nodes, _ = ray
    nodes[0]["Alive"] = False
    with pytest.raises(PlacementError, match="no node"):
        placed_or_refused(lambda *a, **k: Group(0), [BUNDLE], "PACK")


def test_a_group_that_is_not_placed_in_time_is_removed_and_refused(ray, monkeypatch) -> None:
    _, removed = ray
    monkeypatch.setenv("VERL_NPU_PLACEMENT_TIMEOUT", "0.01")
    group = Group(10**6)

    def slow(timeout_seconds: float) -> bool:
        import time

        time.sleep(0.02)
        return False

    group.wait = slow
    with pytest.raises(PlacementError, match=r"were free: 1 CPU, 2 NPU.*VERL_NPU_PLACEMENT_TIMEOUT"):
        placed_or_refused(lambda *a, **k: group, [BUNDLE], "PACK")
    assert removed == [group]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", ""])
def test_a_timeout_that_is_none_is_refused(ray, monkeypatch, text: str) -> None:
    monkeypatch.setenv("VERL_NPU_PLACEMENT_TIMEOUT", text)

    def original(*args, **kwargs):
        raise AssertionError("made a group all the same")

    with pytest.raises(PlacementError, match="VERL_NPU_PLACEMENT_TIMEOUT"):
        placed_or_refused(original, [BUNDLE], "PACK")


@pytest.mark.parametrize(
    ("software", "visible", "cuda", "expected"),
    [
        (True, False, False, (True, False)),
        (True, True, False, (True, False)),
        (True, True, True, (True, False)),
        (False, False, False, (False, False)),
        (False, False, True, (False, True)),
    ],
    ids=["blind actor", "worker", "poisoned by transfer_to_npu", "on without software", "CUDA machine"],
)
def test_software_decides_and_not_what_is_visible(monkeypatch, software, visible, cuda, expected) -> None:
    import sys
    import types

    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    if software:
        monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert (software_decides(visible), cuda_is_not_here(cuda)) == expected


@pytest.mark.parametrize(("given", "asked"), [("cuda", "npu"), ("npu", "npu"), ("cpu", "cpu")])
def test_a_pool_asks_for_npus_where_it_would_ask_for_gpus(given: str, asked: str) -> None:
    seen = []
    npus_are_asked_for(lambda *args: seen.append(args), "pool", device_name=given)
    assert seen == [("pool", "STRICT_PACK", None, asked)]


@pytest.mark.parametrize("automatic", [ascend_unless_cpu, npu_unless_cpu])
def test_an_explicit_cpu_is_not_overridden(automatic) -> None:
    composed = config("cpu")
    automatic(lambda config: config.trainer.update(device="npu"), composed)
    assert composed.trainer.device == "cpu"
    composed = config("cuda")
    automatic(lambda config: config.trainer.update(device="npu"), composed)
    assert composed.trainer.device == "npu"


@pytest.mark.parametrize(
    ("assigned", "visible", "index"),
    [("3", None, 3), ("3", "1,3", 1), ("1", "1,3", 0), ("0", "0", 0), ("2", "3, 2", 1)],
)
def test_an_npu_has_the_index_of_its_place_among_the_visible_ones(assigned: str, visible: str, index: int) -> None:
    assert ordinal(assigned, visible) == index


def test_an_npu_that_the_worker_cannot_see_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"gave this worker NPU 2.*'1,3'.*before `ray start`"):
        ordinal("2", "1,3")
