"""one_step_off_policy at 796871d7: its trainer sets up its workers over Ray and syncs, with a plain model as engine.

No vLLM of that commit's range (0.8 to 0.10) loads on the CPU here. The model inside and the verl module that cannot be
imported without vLLM are stand-ins. The worker classes, FSDP2, Ray and the trainer are real.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .driver import CONNECT, STAND_IN, facts_of

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

WORKERS = """
import torch
from omegaconf import OmegaConf
from recipe.one_step_off_policy.fsdp_workers import ActorRolloutRefWorker, RolloutWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)).to("npu")

class PlainModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model().requires_grad_(False)
    def load_weights(self, weights):
        for name, tensor in weights:
            self.inner.get_parameter(name).copy_(tensor)

def start(worker):
    Worker.__init__(worker)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("cpu:gloo,npu:hccl")

class Actor(ActorRolloutRefWorker):
    def __init__(self, config, role):
        from torch.distributed.fsdp import fully_shard
        start(self)
        self.config, self._is_actor, self._is_rollout = config, True, False
        self.actor_module_fsdp = fully_shard(model())
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        pass
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self, change=0.0):
        for parameter in self.actor_module_fsdp.parameters():
            parameter.data.add_(change)
        return {n: t.full_tensor().cpu().tolist() for n, t in self._get_actor_params().items()}

class Rollout(RolloutWorker):
    def __init__(self, config, role):
        start(self)
        self.config, self._is_actor, self._is_rollout = config, False, True
        self.model = PlainModel()
        self.rollout = stand_in(self.model)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        for parameter in self.model.parameters():
            parameter.zero_()
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self):
        return {name: tensor.cpu().tolist() for name, tensor in self.model.inner.state_dict().items()}
"""

DRIVER = """
import json, os, sys, ray
from omegaconf import OmegaConf
sys.path.insert(0, os.environ["FOLDER"])
from ranked import Actor, Rollout
from recipe.one_step_off_policy.ray_trainer import OneStepOffRayTrainer
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.ray_trainer import ResourcePoolManager, Role
"""
DRIVER += (
    CONNECT
    + """
@ray.remote(num_cpus=1)
class TaskRunner:
    def run(self):
        sys.path.insert(0, os.environ["FOLDER"])
        from verl.utils.device import get_torch_device
        facts = {"npus": get_torch_device().device_count()}
        trainer = OneStepOffRayTrainer.__new__(OneStepOffRayTrainer)
        roles = {Role.Actor: "trainers", Role.Rollout: "rollouts"}
        trainer.resource_pool_manager = ResourcePoolManager({"trainers": [2], "rollouts": [1]}, roles)
        trainer.role_worker_mapping = {Role.Actor: ray.remote(Actor), Role.Rollout: ray.remote(Rollout)}
        trainer.config = OmegaConf.create({
            "actor_rollout_ref": {"hybrid_engine": False, "rollout": {"name": "vllm", "mode": "sync"}}, "trainer": {},
        })
        trainer.use_critic = trainer.use_reference_policy = trainer.use_rm = trainer.ref_in_actor = False
        trainer.hybrid_engine, trainer.device_name = False, "npu"
        trainer.ray_worker_group_cls = RayWorkerGroup
        trainer.init_workers()
        facts["equal"] = [trainer.rollout_wg.look()[0] == trainer.actor_wg.look()[0]]
        for change in (0.5, 0.25):
            trained = trainer.actor_wg.look(change)[0]
            trainer.sync_rollout_weights()
            facts["equal"].append(trainer.rollout_wg.look()[0] == trained)
        return facts

print("FACTS " + json.dumps(ray.get(TaskRunner.remote().run.remote())), flush=True)
"""
)


def test_the_trainer_sets_up_its_workers_and_every_sync_brings_its_weights(tmp_path: Path) -> None:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder:
        pytest.skip("796871d7 is in no registry: set VERL_NPU_UPSTREAMS to a folder with verl-796871d7/")
    facts = facts_of(DRIVER, STAND_IN + WORKERS, tmp_path, 3, Path(folder) / "verl-796871d7")
    # The trainer's own process sees no NPU, like every actor that asked for none.
    assert facts == {"npus": 0, "equal": [True, True, True]}
