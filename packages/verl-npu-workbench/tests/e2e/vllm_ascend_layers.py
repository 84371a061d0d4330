"""KIND DTYPE TENSOR_PARALLEL FAULT FOLDER [KEY=JSON …]: `verl-npu compare --layers` with the real vllm-ascend on
virtual NPUs; prints one line of JSON. FAULT is a fault of the engine: none, base, epsilon, weight, temperature,
or a class of vllm_ascend_seeds. With _ep after KIND, each rank has whole experts. The rest are rollout settings."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Released:
    """A fault of a release of transformers, which the next one here does not have, or of vllm-ascend."""

    kind: str
    changes: dict[str, object]
    """Changes of config.json, in the words of checkpoints for transformers 4."""
    releases: tuple[str, ...] = ()
    without: tuple[str, ...] = ("rope_parameters",)


_YARN = {"rope_type": "yarn", "factor": 4.0, "truncate": True}
RELEASED = {
    # The ramp between scaled and other frequencies comes from the scaled number of positions.
    "transformers#33783": Released(
        "qwen2",
        {
            "rope_theta": 10000.0,
            "rope_scaling": {**_YARN, "original_max_position_embeddings": 128},
        },
        ("4.50.3", "4.51.3"),
    ),
    "transformers#38224": Released(
        "qwen3",
        {
            "rope_theta": 10000.0,
            "rope_scaling": {**_YARN, "original_max_position_embeddings": 256},
        },
        ("4.55.4", "4.56.2"),
    ),
    # By default, vllm-ascend 0.23.0 does not truncate the ends of the ramp.
    "yarn": Released(
        "qwen3",
        {
            "rope_theta": 10000.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        },
    ),
    "transformers#38002": Released(
        "qwen2", {"sliding_window": 32, "use_sliding_window": False, "rope_theta": 10000.0}, ("4.51.3", "4.52.4")
    ),
    # Experts of a group that was not chosen have the score 0, and those of a chosen one may have less.
    "transformers#45440": Released("deepseek_v3", {}, ("5.5.0", "5.6.0"), ()),
}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 1}


def make_released(fault: Released, dtype: str, folder: Path) -> None:
    """Write a small random model for a fault of a release."""
    import torch
    from safetensors.torch import load_file, save_file

    make(fault.kind, folder, **(GROUPS if fault.kind == "deepseek_v3" else {}))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = weight.to(getattr(torch, dtype))
        if name.endswith("e_score_correction_bias"):
            weights[name] = -1 - torch.rand(weight.shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fault.changes, "torch_dtype": dtype}
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in fault.without}))


def before_and_after(fault: Released, settings: Any, folder: Path) -> dict[str, Any]:
    """Compare one engine with the trainers of two releases of transformers."""
    from verl_npu_workbench.layers import running

    found, compared = dict[str, Any](), running._compared

    def both(where: Path, variables: Any) -> Any:
        for name, release in zip(("before", "after"), fault.releases, strict=True):
            path = os.path.join(os.environ["VERL_NPU_UPSTREAMS"], f"transformers-{release}")
            found[name] = compared(where, {**variables, "PYTHONPATH": f"{path}{os.pathsep}{variables['PYTHONPATH']}"})
        return found["after"]

    running._compared = both
    running.compare_layers(settings, folder)
    return found


def main() -> None:
    """Compare, and print."""
    import torch
    from verl_npu_workbench.jobs.keys import MODEL, PATH, ROLLOUT, STRATEGY
    from verl_npu_workbench.jobs.settings import Settings
    from verl_npu_workbench.layers.running import compare_layers

    whole, dtype, parallel, fault, folder, more = *sys.argv[1:5], Path(sys.argv[5]), sys.argv[6:]
    kind = whole.removesuffix("_ep")
    torch.set_num_threads(1)
    made, served = folder / "model", folder / "served"
    released = RELEASED.get(fault)
    if released is None:
        make_in(kind, dtype, made)
    else:
        make_released(released, dtype, made)
    rollout: dict[str, object] = {
        "dtype": dtype,
        "tensor_model_parallel_size": int(parallel),
        "expert_parallel_size": int(parallel) if kind != whole else 1,
        "enforce_eager": True,
        "logprobs_mode": "processed_logprobs",
        "engine_kwargs.vllm.num_gpu_blocks_override": 64,
        "engine_kwargs.vllm.enable_sleep_mode": fault == "Asleep",
        **FAULTS.get(fault, {}),
        **{key: json.loads(value) for key, value in (each.split("=", 1) for each in more)},
    }
    if fault == "weight":
        spoil(made, served)
        rollout["engine_kwargs.vllm.model"] = str(served)
    if hasattr(vllm_ascend_seeds, fault):
        rollout["engine_kwargs.vllm.worker_extension_cls"] = f"vllm_ascend_seeds.{fault}"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    # Only transformers computes the trainer; test_trainer_layers.py has verl's own.
    settings = Settings(
        {
            PATH: str(made),
            STRATEGY: "none",
            **({f"{MODEL}.override_config.attn_implementation": "sdpa"} if released else {}),
            **{f"{ROLLOUT}.{key}": value for key, value in rollout.items()},
        }
    )
    several = released is not None and released.releases
    found = before_and_after(released, settings, folder) if several else compare_layers(settings, folder)
    print("ANSWER " + json.dumps(found))


if __name__ == "__main__":
    main()
