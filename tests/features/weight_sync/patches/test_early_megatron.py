"""one_step_off_policy's Megatron workers at 796871d7: real trainers and MindSpeed, with a plain model as engine.

As in test_early_trainer, no vLLM of that commit's range loads on the CPU here. The model inside and the verl module
that cannot be imported without vLLM are stand-ins. Needs VERL_NPU_UPSTREAMS, a folder with `verl-796871d7/`,
`mindspeed-1cdd0abd75/` and `megatron-0.12.1/`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.model import generate

from .driver import CONNECT, STAND_IN, facts_of

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

WANTED = ("verl-796871d7", "mindspeed-1cdd0abd75", "megatron-0.12.1")

WORKERS = """
import torch
from recipe.one_step_off_policy.megatron_workers import ActorRolloutRefWorker, RolloutWorker
from verl.single_controller.base.decorator import Dispatch, register

class PlainModel(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        from transformers import AutoModelForCausalLM
        self.inner = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16)
        for parameter in self.inner.parameters():
            parameter.requires_grad_(False).zero_()
    def load_weights(self, weights):
        for name, tensor in weights:
            self.inner.get_parameter(name).copy_(tensor)

class Actor(ActorRolloutRefWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def change(self, by):
        for chunk in self.actor_module:
            for parameter in chunk.parameters():
                parameter.data.add_(by)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self):
        return {name: tensor.float().cpu().tolist() for name, tensor in self._get_actor_params_generator()}

class Rollout(RolloutWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        self.model = PlainModel(self.config.model.path)
        self.rollout = stand_in(self.model)
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self):
        return {name: tensor.float().tolist() for name, tensor in self.model.inner.named_parameters()}
"""

DRIVER = """
import json, os, sys, ray
from hydra import compose, initialize_config_dir
sys.path.insert(0, os.environ["FOLDER"])
from ranked import Actor, Rollout
from recipe.one_step_off_policy.ray_trainer import OneStepOffRayTrainer
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.ray_trainer import ResourcePoolManager, Role

model = os.environ["FOLDER"] + "/model"
with initialize_config_dir(os.environ["CHECKOUT"] + "/verl/trainer/config", version_base=None):
    config = compose("ppo_megatron_trainer", [
        "actor_rollout_ref.hybrid_engine=False",
        "actor_rollout_ref.model.path=" + model,
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.optim.total_training_steps=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.mode=sync",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    ])
"""
DRIVER += (
    CONNECT
    + """
@ray.remote(num_cpus=1)
class TaskRunner:
    def run(self):
        sys.path.insert(0, os.environ["FOLDER"])
        trainer = OneStepOffRayTrainer.__new__(OneStepOffRayTrainer)
        roles = {Role.Actor: "trainers", Role.Rollout: "rollouts"}
        # Upstream divides the rollouts by the trainers' parallelism as well.
        trainer.resource_pool_manager = ResourcePoolManager({"trainers": [2], "rollouts": [2]}, roles)
        trainer.role_worker_mapping = {Role.Actor: ray.remote(Actor), Role.Rollout: ray.remote(Rollout)}
        trainer.config = config
        trainer.use_critic = trainer.use_reference_policy = trainer.use_rm = trainer.ref_in_actor = False
        trainer.hybrid_engine, trainer.device_name = False, "npu"
        trainer.ray_worker_group_cls = RayWorkerGroup
        trainer.init_workers()
        equal = []
        for change in (0.0, 0.5, 0.25):
            trainer.actor_wg.change(change)
            trainer.sync_rollout_weights()
            trained = trainer.actor_wg.look()[0]
            equal.append(all(held == trained for held in trainer.rollout_wg.look()))
        return equal

print("FACTS " + json.dumps(ray.get(TaskRunner.remote().run.remote())), flush=True)
"""
)


def test_trainers_with_tensor_parallelism_give_their_weights_at_each_sync(tmp_path: Path) -> None:
    folder = os.environ.get("VERL_NPU_UPSTREAMS")
    if not folder or not all((Path(folder) / name).is_dir() for name in WANTED):
        pytest.skip(f"these are in no registry: set VERL_NPU_UPSTREAMS to a folder with {'/, '.join(WANTED)}/")
    generate(tmp_path / "model", 0, key_value_heads=2)
    paths = [Path(folder) / name for name in WANTED]
    changes = {"CHECKOUT": str(paths[0]), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert facts_of(DRIVER, STAND_IN + WORKERS, tmp_path, 4, *paths, **changes) == [True, True, True]
