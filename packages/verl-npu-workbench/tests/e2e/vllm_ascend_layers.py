"""KIND DTYPE TENSOR_PARALLEL FAULT FOLDER [KEY=JSON …]: `verl-npu compare --layers` with the real vllm-ascend on
virtual NPUs; prints one line of JSON. FAULT is a fault of the engine: none, base, epsilon, weight, temperature,
yarn for a model with this scaling, or a class of vllm_ascend_seeds. With _ep after KIND, each rank has whole experts.
The rest are rollout settings, and `strategy` is the trainer's. Without it, transformers takes the trainer's place."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import vllm_ascend_seeds
import vllm_ascend_vision
from vllm_ascend_tokens import KINDS, make

STALE = "model.layers.1.self_attn.o_proj.weight"
FAULTS: dict[str, dict[str, object]] = {
    "base": {"engine_kwargs.vllm.hf_overrides.rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    "epsilon": {"engine_kwargs.vllm.hf_overrides.rms_norm_eps": 0.1},
    "temperature": {"temperature": 0.7},
}


def spoil(folder: Path, served: Path) -> None:
    """Write a copy of a checkpoint with one other weight."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, served)
    weights = load_file(folder / "model.safetensors")
    weights[STALE] = (weights[STALE] + 0.02 * torch.randn(weights[STALE].shape)).to(weights[STALE].dtype)
    save_file(weights, served / "model.safetensors", {"format": "pt"})


def make_in(kind: str, dtype: str, folder: Path) -> None:
    """Write a small random model in a dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    if kind not in KINDS:
        vllm_ascend_vision.make(folder, kind, dtype)
        return
    make(kind, folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).save_pretrained(folder)


YARN: dict[str, object] = {
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
}


def change(folder: Path, changes: dict[str, object]) -> None:
    """Change a checkpoint's config.json, in the words of checkpoints for transformers 4."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    if "rope_theta" in config:
        config.pop("rope_parameters", None)
    path.write_text(json.dumps(config))


def main() -> None:
    """Compare, and print."""
    import torch
    from verl_npu_workbench.jobs.keys import ACTOR, PATH, ROLLOUT, STRATEGY
    from verl_npu_workbench.jobs.settings import Settings
    from verl_npu_workbench.layers.running import compare_layers

    whole, dtype, parallel, fault, folder, more = *sys.argv[1:5], Path(sys.argv[5]), sys.argv[6:]
    kind = whole.removesuffix("_ep")
    torch.set_num_threads(1)
    made, served = folder / "model", folder / "served"
    make_in(kind, dtype, made)
    if fault == "yarn":
        change(made, YARN)
    rollout: dict[str, object] = {
        "dtype": dtype,
        "tensor_model_parallel_size": int(parallel),
        "expert_parallel_size": int(parallel) if kind != whole else 1,
        "enforce_eager": True,
        "logprobs_mode": "processed_logprobs",
        "engine_kwargs.vllm.num_gpu_blocks_override": 64,
        **FAULTS.get(fault, {}),
        **{key: json.loads(value) for key, value in (each.split("=", 1) for each in more)},
    }
    if fault == "weight":
        spoil(made, served)
        rollout["engine_kwargs.vllm.model"] = str(served)
    if hasattr(vllm_ascend_seeds, fault):
        rollout["engine_kwargs.vllm.worker_extension_cls"] = f"vllm_ascend_seeds.{fault}"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    settings = {PATH: str(made), STRATEGY: rollout.pop("strategy", "none")}
    settings[f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"] = dtype
    settings |= {f"{ROLLOUT}.{key}": value for key, value in rollout.items()}
    print("ANSWER " + json.dumps(compare_layers(Settings(settings), folder)))


if __name__ == "__main__":
    main()
