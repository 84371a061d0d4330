"""The patches on upstream's own recipes are applied, and dispatched like upstream's methods."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from testing.interpreter import python

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = """
import importlib, json, sys
import verl
from verl.single_controller.base.decorator import MAGIC_ATTR, Dispatch
found = {}
for target in sys.argv[1:]:
    module, _, qualname = target.partition(":")
    value = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    attributes = getattr(value, MAGIC_ATTR, None)
    found[target] = attributes and [attributes["dispatch_mode"] == Dispatch.ONE_TO_ALL, attributes["blocking"]]
import verl_npu
patches = verl_npu.status()["features"]["weight_sync"]["patches"].values()
states = {patch["target"]: patch["state"] for patch in patches}
print("FACTS " + json.dumps([found, {target: states[target] for target in found}]))
"""

ONE_STEP = "recipe.one_step_off_policy"
ASYNC = "recipe.fully_async_policy"
TARGETS = {
    "796871d7": [f"{ONE_STEP}.fsdp_workers:ActorRolloutRefWorker.sync_rollout_weights"],
    "v0.6.1": [f"{ASYNC}.fsdp_workers:DetachNcclSync.sync_rollout_weights"],
    # At this pin fully_async_policy needs zmq, which only comes with vLLM; the smoke job runs it.
    "ccd7d934": [f"{ONE_STEP}.fsdp_workers:DetachSync.sync_rollout_weights"],
}


@pytest.mark.parametrize("pin", TARGETS)
def test_the_workers_methods_are_ours_and_dispatched_to_all_without_waiting(pin: str) -> None:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip(f"recipes are in no registry: set VERL_NPU_UPSTREAMS to a folder with verl-{pin}/")
    checkout = Path(folder) / f"verl-{pin}"
    ended = python("-B", "-c", PROGRAM, *TARGETS[pin], paths=[checkout], VIRTUAL_ASCEND="2")
    assert ended.returncode == 0, ended.stderr[-3000:]
    found, states = json.loads(ended.stdout.rpartition("FACTS ")[2])
    assert set(states.values()) == {"applied"}, states
    assert all(attributes == [True, False] for attributes in found.values()), found
