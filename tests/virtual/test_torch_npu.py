"""torch_npu is closed: what is not written raises with its name, what does not exist is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

pytestmark = pytest.mark.virtual


@pytest.fixture
def torch_npu(npu: ModuleType) -> ModuleType:
    return importlib.import_module("torch_npu")


def test_an_invented_operator_does_not_exist(torch_npu: ModuleType) -> None:
    assert not hasattr(torch_npu, "npu_gmm")
    assert not hasattr(torch_npu.npu, "npu_gmm")


def test_every_known_and_unwritten_operator_raises_with_its_name(torch_npu: ModuleType) -> None:
    from torch_npu._operators import MISSING

    for name in MISSING:
        with pytest.raises(NotImplementedError, match=rf"^torch_npu\.{name} is not implemented by the virtual Ascend"):
            getattr(torch_npu, name)(1, key=2)


def test_no_module_invents_attributes(torch_npu: ModuleType) -> None:
    for module in (torch_npu, torch_npu.npu, torch_npu.profiler, torch_npu.npu.mstx, torch_npu.npu.memory):
        assert "__getattr__" not in vars(module)


def test_the_profiler_says_that_it_records_nothing(torch_npu: ModuleType) -> None:
    assert torch_npu.profiler.supported_activities() == set()
    torch_npu.profiler._ExperimentalConfig(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)
    with pytest.raises(NotImplementedError, match=r"torch_npu\.profiler\.profile"):
        torch_npu.profiler.profile()


def test_transfer_to_npu_is_not_implemented(torch_npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"torch_npu\.contrib\.transfer_to_npu"):
        importlib.import_module("torch_npu.contrib.transfer_to_npu")


def test_marks_leave_a_function_as_it_is(torch_npu: ModuleType) -> None:
    mstx = importlib.import_module("torch_npu.npu.mstx")
    assert mstx.mstx.mstx_range("step")(len)("ab") == 2
    mstx.range_end(mstx.range_start("step"))


def test_recording_the_memory_history_raises_and_stopping_does_not(npu: ModuleType) -> None:
    npu.npu.memory._record_memory_history(enabled=None)
    with pytest.raises(NotImplementedError, match="_record_memory_history"):
        npu.npu.memory._record_memory_history()
