"""KIND DTYPE TENSOR_PARALLEL FAULT FOLDER: the layers of the real vllm-ascend on virtual NPUs beside transformers';
prints one line of JSON. FAULT is a fault of the engine: none, base, epsilon, weight, temperature, or a class of
vllm_ascend_seeds. If KIND ends with _ep, each rank has whole experts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import vllm_ascend_seeds
from vllm_ascend_tokens import make

LENGTHS, NEW, STALE = (7, 20, 100), 12, "model.layers.1.self_attn.o_proj.weight"
OVERRIDES: dict[str, dict[str, object]] = {
    "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    "epsilon": {"rms_norm_eps": 0.1},
}


def temperature_of(fault: str) -> float:
    return 0.7 if fault == "temperature" else 1.0


def ask(model: Any, served: Path, dtype: str, parallel: int, fault: str) -> dict[str, Any]:
    """Return what the engine is asked for."""
    from verl_npu.features.weight_sync.transport.tensors import digest_of

    engine = {
        "model": str(served),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.5,
        "num_gpu_blocks_override": 64,
        "dtype": dtype,
        "tensor_parallel_size": parallel,
        "logprobs_mode": "processed_logprobs",
    }
    if hasattr(vllm_ascend_seeds, fault):
        engine["worker_extension_cls"] = f"vllm_ascend_seeds.{fault}"
    if fault in OVERRIDES:
        engine["hf_overrides"] = OVERRIDES[fault]
    return {
        "engine": engine,
        "sampling": {"temperature": temperature_of(fault), "max_tokens": NEW, "seed": 1},
        "prompts": [[5 + (7 * n + row) % 500 for n in range(length)] for row, length in enumerate(LENGTHS)],
        "tensor_parallel": parallel,
        "weights": {name: (digest_of(each), list(each.shape)) for name, each in model.state_dict().items()},
    }


def spoil(folder: Path, served: Path) -> None:
    """Write a copy of a checkpoint with one other weight."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, served)
    weights = load_file(folder / "model.safetensors")
    weights[STALE] = (weights[STALE] + 0.02 * torch.randn(weights[STALE].shape)).to(weights[STALE].dtype)
    save_file(weights, served / "model.safetensors", {"format": "pt"})


def main() -> None:
    """Compare, and print."""
    import torch
    from transformers import AutoModelForCausalLM
    from verl_npu_workbench.layers.comparing import compare
    from verl_npu_workbench.layers.computing import read_beside
    from verl_npu_workbench.layers.recording import record
    from verl_npu_workbench.layers.report import content

    whole, dtype, parallel, fault, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
    kind = whole.removesuffix("_ep")
    torch.set_num_threads(1)
    made = folder / "model"
    make(kind, made)
    AutoModelForCausalLM.from_pretrained(made, dtype=getattr(torch, dtype)).save_pretrained(made)
    model = AutoModelForCausalLM.from_pretrained(made, dtype=getattr(torch, dtype)).eval()
    served = made
    if fault == "weight":
        served = folder / "served"
        spoil(made, served)
    asked = ask(model, served, dtype, parallel, fault)
    asked["engine"]["enable_expert_parallel"] = kind != whole
    (folder / "ask.json").write_text(json.dumps(asked))
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    program = [sys.executable, "-m", "verl_npu_workbench.layers.vllm", str(folder)]
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    engine = read_beside(folder, getattr(torch, dtype), model)
    temperature = temperature_of(fault)
    found = compare(model, record(model, engine.batch, temperature), engine, temperature=temperature)
    print("ANSWER " + json.dumps(content(found, [])))


if __name__ == "__main__":
    main()
