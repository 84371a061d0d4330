"""Make each Megatron worker of a pin, and print which overrides MindSpeed had at which time; runs in its own process.

Arguments: the workers. Each is made in a fork, by upstream's own class, with a real MindSpeed and real process groups
of one rank; prints `TABLE {…}` for each.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import types
import warnings
from typing import Any

WORKERS = ("actor", "ref", "critic", "reward_model", "engine", "value_engine")
ENGINES = {"engine": "MindspeedEngineWithLMHead", "value_engine": "MindspeedEngineWithValueHead"}


class Reached(BaseException):
    """The groups are made; the worker's later actions are not examined."""


def section(worker: str) -> dict[str, Any]:
    """Return a worker's `megatron` section, with an override that distinguishes it from the others."""
    return {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None,
        "sequence_parallel": False,
        "use_distributed_optimizer": True,
        "seed": 1,
        "param_offload": False,
        "grad_offload": False,
        "optimizer_offload": False,
        "override_transformer_config": {"hidden_dropout": (1 + WORKERS.index(worker)) / 10},
    }


def look(worker: str) -> dict[str, Any]:
    """Make one worker, and return what was recorded."""
    import megatron.core.parallel_state as parallel
    import torch
    from mindspeed.args_utils import get_full_args
    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager as Manager

    events: list[str] = []
    seen: dict[str, Any] = {}
    removed, groups, parallelised = (
        Manager.remove_patches,
        torch.distributed.init_process_group,
        parallel.initialize_model_parallel,
    )

    def got() -> dict[str, Any]:
        return {key: vars(get_full_args()).get(key) for key in ("use_flash_attn", "hidden_dropout")}

    def on_repatch() -> None:
        events.append("repatch")
        removed()

    def on_groups(*args: Any, **kwargs: Any) -> None:
        events.append("process group")
        groups(*args, **kwargs)

    def on_parallel(*args: Any, **kwargs: Any) -> None:
        events.append("model parallel groups")
        seen.update(got())
        parallel.initialize_model_parallel = parallelised
        parallelised(*args, **kwargs)
        if worker not in ENGINES:
            raise Reached

    Manager.remove_patches = staticmethod(on_repatch)
    parallel.initialize_model_parallel = on_parallel
    with contextlib.suppress(Reached):
        make(worker, torch, on_groups)
    return {"worker": worker, "events": events, "by then": seen, "at the end": got()}


def make(worker: str, torch: Any, on_groups: Any) -> None:
    from omegaconf import OmegaConf

    if worker in ENGINES:
        import verl.workers.engine.mindspeed.transformer_impl as module
        from verl.workers.config import McoreEngineConfig

        torch.distributed.init_process_group(backend="hccl")
        known = McoreEngineConfig.__dataclass_fields__
        content = {key: value for key, value in {**section(worker), "use_mbridge": True}.items() if key in known}
        model = types.SimpleNamespace(model_type="language_model", hf_config=None, mtp=None)
        getattr(module, ENGINES[worker])(model, McoreEngineConfig(**content), None, None)
        return
    import verl.workers.megatron_workers as module

    torch.distributed.init_process_group = on_groups
    if worker in ("actor", "ref"):
        config = {
            "actor": {"megatron": section("actor")},
            "ref": {"megatron": section("ref")},
            "rollout": {},
            "nccl_timeout": 60,
        }
        module.ActorRolloutRefWorker(OmegaConf.create(config), role=worker)
    else:
        kind = module.CriticWorker if worker == "critic" else module.RewardModelWorker
        kind(OmegaConf.create({"megatron": section(worker), "profiler": {}}))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    warnings.filterwarnings("ignore")
    workers = sys.argv[1:]
    # MindSpeed reads its arguments from there.
    del sys.argv[1:]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(ranks)
    import torch  # noqa: F401

    if set(workers) & set(ENGINES):
        import verl.workers.engine.mindspeed.transformer_impl
    if set(workers) - set(ENGINES):
        import verl.workers.megatron_workers  # noqa: F401
    logging.disable(logging.CRITICAL)
    for worker in workers:
        os.environ["MASTER_PORT"] = str(free_port())
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                print("TABLE " + json.dumps(look(worker)), flush=True)
                status = 0
            finally:
                os._exit(status)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
