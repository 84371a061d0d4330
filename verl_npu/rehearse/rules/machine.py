"""NPUs, nodes, parallel sizes, and what Ray and the data loaders start."""

from __future__ import annotations

from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["NPUS", "PARALLEL", "PIPELINE_STAGES", "RAY", "WORKERS"]

_TRAINERS_OWN = ("trainer.n_gpus_per_node", "trainer.nnodes")
_ROLLOUTS_OWN = ("rollout.n_gpus_per_node", "rollout.nnodes")
_SECTION, _OVERRIDES = ".megatron", ".megatron.override_transformer_config"


def _npus(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    if "trainer.n_gpus_per_node" in script:
        changed |= {"trainer.n_gpus_per_node": scene.layout.npus, "trainer.nnodes": 1}
    if scene.layout.rollout_npus:
        changed |= {"rollout.n_gpus_per_node": scene.layout.rollout_npus, "rollout.nnodes": 1}
        for key in ("actor_rollout_ref.rollout.n_gpus_per_node", "actor_rollout_ref.rollout.nnodes"):
            if script.whole(key):
                changed[key] = 1 if key.endswith("nnodes") else scene.layout.rollout_npus
    for section in ("reward_model", "reward.reward_model", "distillation"):
        if script.truth(f"{section}.enable_resource_pool") or script.truth(f"{section}.enable"):
            for name in ("n_gpus_per_node", "nnodes"):
                if script.whole(f"{section}.{name}"):
                    changed[f"{section}.{name}"] = 1
    return changed


def _parallel(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    layout = scene.layout
    sizes = {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "ulysses_sequence_parallel_size": layout.sequence,
        "ulysses_parallel_size": layout.sequence,
    }
    rollout = {
        "tensor_model_parallel_size": layout.rollout_tensor,
        "data_parallel_size": layout.rollout_data,
        "expert_parallel_size": layout.rollout_expert,
        "pipeline_model_parallel_size": 1,
    }
    roles = [
        key for key in script.ending("context_parallel_size") if key.endswith(f"{_SECTION}.context_parallel_size")
    ]
    changed: dict[str, object] = {}
    for key in script.ending(*sizes, *rollout, "fsdp_size"):
        name = key.rpartition(".")[2]
        size = script.whole(key, -1)
        if key.startswith("actor_rollout_ref.rollout."):
            if size > rollout.get(name, size):
                changed[key] = rollout[name]
        elif ".rollout." in key:
            if size > 1:
                changed[key] = 1
        elif name == "fsdp_size":
            if size > layout.npus:
                changed[key] = -1
        elif name in sizes and size > sizes[name]:
            changed[key] = sizes[name]
            if sizes[name] == 1 and key.endswith(f"{_OVERRIDES}.context_parallel_size"):
                # MindSpeed patches for an override that is 1, and not for one that is missing: alike for all roles.
                changed |= {role.replace(_SECTION, _OVERRIDES): 1 for role in roles}
    # Megatron takes the tensor dimension for one that is null; the layout gave that up.
    if layout.expert > 1 and layout.expert_tensor < layout.tensor:
        for key in script.ending("expert_tensor_parallel_size"):
            if script.get(key) is None and key.replace("expert_tensor_", "expert_model_") in script:
                changed[key] = layout.expert_tensor
    return changed


def _stages(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    names = (
        "virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_num_transformer_layers",
        "pipeline_model_parallel_layout",
    )
    for key in script.ending(*names):
        if script.get(key) is not None:
            changed[key] = None
    for key in script.ending("recompute_num_layers"):
        if script.whole(key) > 1:
            changed[key] = 1
    return changed


def _ray(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    processors = max(64, 16 * scene.layout.all_npus)
    changed: dict[str, object] = {
        key: processors for key in ("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus") if key in script
    }
    # The older section has its one key passed on, and no other.
    if "ray_kwargs.ray_init.num_cpus" in script:
        changed["ray_kwargs.ray_init.include_dashboard"] = False
    return changed


def _workers(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    keys = [
        "actor_rollout_ref.rollout.agent.num_workers",
        "reward.num_workers",
        "reward_model.num_workers",
        "data.filter_overlong_prompts_workers",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    ]
    changed: dict[str, object] = {key: 1 for key in keys if script.whole(key) > 1}
    # A loader in the trainer's own process: each other one is a process with torch.
    return changed | {key: 0 for key in ("data.dataloader_num_workers", "data.num_workers") if script.whole(key)}


NPUS = Rule("NPUs", "The virtual NPUs of one machine. What several machines do to each other is not shown.", _npus)
PARALLEL = Rule(
    "parallel sizes", "Each dimension is 2 as far as the NPUs go: all of its communication happens.", _parallel
)
PIPELINE_STAGES = Rule(
    "pipeline stages", "They count the layers of the full model; the small one is split evenly.", _stages
)
RAY = Rule(
    "Ray",
    "Placement groups ask for more CPUs than a small machine has, and would wait; the dashboard would take as much of "
    "it as a worker.",
    _ray,
)
WORKERS = Rule("helper processes", "One of each kind: they share two cores.", _workers)
