"""The group over a real Ray and verl's own worker groups, in the order in which upstream's trainers call."""

from __future__ import annotations

from pathlib import Path

import pytest

from .driver import CONNECT, facts_of

pytest.importorskip("verl")
pytest.importorskip("ray")

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

WORKERS = """
from types import SimpleNamespace
import ray, torch
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl_npu.features.weight_sync.engines import vllm
from verl_npu.features.weight_sync.patches import workers

class Model(torch.nn.Module):
    # Stands in for an engine's model.
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8, device="npu").requires_grad_(False)
    def load_weights(self, weights):
        for name, tensor in weights:
            self.get_parameter(name).copy_(tensor)

class Both(Worker):
    def __init__(self, role):
        super().__init__()
        import torch_npu
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("cpu:gloo,npu:hccl")
        self._is_actor, self._is_rollout = role == "actor", role == "rollout"
        self.model = Model()
        # What needs vLLM itself: finding the model in it, and its loaders of experts.
        workers._engine = lambda worker: vllm.VLLMEngine(SimpleNamespace(model=worker.model))
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get_actor_weights_info(self):
        self._weights_info = [(n, t.size(), t.dtype) for n, t in self._get_actor_params().items()]
        return self._weights_info
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_actor_weights_info(self, info):
        self._weights_info = info
    def _get_actor_params(self):
        return {name: tensor.detach() for name, tensor in self.model.named_parameters()}
    def _get_actor_params_generator(self):
        yield from self._get_actor_params().items()
    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def sync_rollout_weights(self, kind):
        getattr(workers, "sync_" + kind)(self, "actor_rollout")
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self, value):
        torch.manual_seed(value)
        for parameter in self.model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self):
        return {name: tensor.cpu().tolist() for name, tensor in self.model.state_dict().items()}
"""

DRIVER = """
import json, os, sys, ray
sys.path.insert(0, os.environ["FOLDER"])
from ranked import Both
from verl.single_controller.ray.base import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl_npu.features.weight_sync.patches.collective import create_collective_group
from verl_npu.errors import WeightSyncError
"""
DRIVER += (
    CONNECT
    + """
def group_of(role, size):
    pool = RayResourcePool([size], use_gpu=True, name_prefix=role, max_colocate_count=1)
    cls = create_colocated_worker_cls({role: RayClassWithInitArgs(ray.remote(Both), role=role)})
    made = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=cls, device_name="npu")
    return made.spawn(prefix_set=[role])[role]

trainers, rollouts = group_of("actor", 2), group_of("rollout", 1)
rollouts.set_actor_weights_info(trainers.get_actor_weights_info()[0])
everybody = trainers.workers + rollouts.workers
create_collective_group(everybody, 3, list(range(3)), backend="nccl", group_name="actor_rollout")
facts = {"equal": []}
for number, kind in enumerate(["fsdp", "megatron", "fsdp"]):
    trainers.train(number)
    # As upstream: the trainers first, and not awaited.
    trainers.sync_rollout_weights(kind)
    ray.get(rollouts.sync_rollout_weights(kind))
    facts["equal"].append(rollouts.look()[0] == trainers.look()[0])
try:
    create_collective_group(everybody, 3, list(range(3)), backend="nccl", group_name="actor_rollout")
except WeightSyncError as error:
    facts["twice"] = str(error)
ray.kill(trainers.workers[0])
try:
    ray.get(rollouts.sync_rollout_weights("fsdp"))
except WeightSyncError as error:
    facts["killed"], facts["subject"] = str(error), error.subject
print("FACTS " + json.dumps(facts), flush=True)
"""
)


@pytest.mark.nightly("verl_npu/features/weight_sync")
def test_trainers_and_rollouts_in_ray_actors_sync_and_a_killed_trainer_is_named(tmp_path: Path) -> None:
    facts = facts_of(DRIVER, WORKERS, tmp_path, 3, VERL_NPU_WEIGHT_SYNC_TIMEOUT="60")
    assert facts["equal"] == [True, True, True]
    assert "is already in a group 'actor_rollout'" in facts["twice"]
    assert "rank 0 (actor " in facts["killed"]
    # The fields have come whole through Ray.
    assert facts["subject"] == "weight sync group 'actor_rollout'"
