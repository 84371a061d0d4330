"""The installed software decides whether a process belongs to a job on NPUs.

The default of trainer.device becomes npu; a value that the user set stays.
"""

from __future__ import annotations

import sys
import types

import pytest

from verl_npu.errors import JobSettingError
from verl_npu.features.device import (
    deny_cuda_beside_torch_npu,
    detect_npu_by_installed_software,
    resolve_device,
    set_npu_in_hydra_config,
    set_npu_in_run_ppo_config,
)
from verl_npu.features.device import device as feature


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
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    if software:
        monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert (detect_npu_by_installed_software(visible), deny_cuda_beside_torch_npu(cuda)) == expected


def test_the_default_becomes_npu(config) -> None:
    assert set_npu_in_hydra_config(lambda task, cfg: cfg.trainer.device, None, config("cuda")) == "npu"


def test_the_default_becomes_npu_for_callers_of_run_ppo(config) -> None:
    assert set_npu_in_run_ppo_config(lambda cfg: cfg.trainer.device, config("cuda")) == "npu"


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_what_the_user_set_stays(device: str, config) -> None:
    composed = config(device, f"trainer.device={device}")
    resolve_device(composed, composed.hydra.overrides.task)
    assert composed.trainer.device == device


def test_an_application_without_a_trainer_is_left_alone(config) -> None:
    composed = config(None)
    before = composed.copy()
    resolve_device(composed, ())
    assert composed == before


@pytest.mark.parametrize("override", ["trainer.device=cuda", "+trainer.device=cuda", "++trainer.device=cuda"])
def test_cuda_that_the_user_asks_for_is_a_contradiction(override: str, config) -> None:
    composed = config("cuda", "trainer.nnodes=1", override)
    with pytest.raises(JobSettingError, match=r"has no CUDA.*VERL_NPU_DISABLE=device") as error:
        resolve_device(composed, composed.hydra.overrides.task)
    assert override in str(error.value)
    assert composed.trainer.device == "cuda"


AUTOMATIC = {patch.target.name: patch.implementation for patch in feature if "keep_cpu" in patch.id}


@pytest.mark.parametrize("function", ["auto_set_ascend_device_name", "auto_set_device"])
def test_an_explicit_cpu_is_not_overridden(function: str, config) -> None:
    automatic = AUTOMATIC[function]
    composed = config("cpu")
    automatic(lambda config: config.trainer.update(device="npu"), composed)
    assert composed.trainer.device == "cpu"
    composed = config("cuda")
    automatic(lambda config: config.trainer.update(device="npu"), composed)
    assert composed.trainer.device == "npu"
