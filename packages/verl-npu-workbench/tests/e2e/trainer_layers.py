"""KIND DTYPE STRATEGY PARALLEL FAULT FOLDER: the layers of verl's own FSDP or Megatron engine on two virtual NPUs.

The other side is transformers, which answers with a cache. Prints one line of JSON.

PARALLEL is the size of Ulysses or, for Megatron, of tensor parallelism; without it, the ranks divide the experts.
FAULT is none, padded for sequences with padding, fused for log-probabilities without logits, normalized for experts
with normalized weights, weight for a stale one, or a change of the configuration."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path

from vllm_ascend_layers import make_in, spoil

LENGTHS, NEW, TEMPERATURE = (72, 7, 48), 12, 0.7
SAME = ("none", "padded", "fused", "normalized")
"""What is no fault of the trainer's checkpoint."""
OVERRIDES: dict[str, dict[str, object]] = {
    # In the words of transformers 4, which mbridge needs.
    "base": {"rope_theta": 1000000.0},
    "epsilon": {"rms_norm_eps": 0.1},
}


def main() -> None:
    """Compare, and print."""
    import torch
    from verl_npu_workbench.jobs.keys import ACTOR, MODEL, PACKED, STRATEGY
    from verl_npu_workbench.jobs.settings import Settings
    from verl_npu_workbench.layers.causes import Sampling
    from verl_npu_workbench.layers.comparing import compare, content
    from verl_npu_workbench.layers.computing import _load, generated
    from verl_npu_workbench.layers.running import _trainer
    from verl_npu_workbench.layers.training import trained

    from verl_npu.features.weight_sync.transport.tensors import digest_of

    kind, dtype, strategy, parallel, fault = sys.argv[1:6]
    folder, torch_dtype = Path(sys.argv[6]), getattr(torch, dtype)
    torch.set_num_threads(1)
    made, served = folder / "model", folder / ("model" if fault in SAME else "served")
    make_in(kind, dtype, made)
    if fault == "normalized":
        path = made / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "norm_topk_prob": True}))
    model = _load({"engine": {"model": str(made)}}, torch_dtype, "sdpa")
    if fault == "weight":
        spoil(made, served)
    elif served != made:
        model.config.__class__.from_pretrained(made, **OVERRIDES[fault]).save_pretrained(shutil.copytree(made, served))
    # Flash attention takes packed rows only.
    packed = dtype == "bfloat16" and fault != "padded"
    asked = {
        "engine": {"model": str(served), "dtype": dtype},
        "weights": {name: (digest_of(each), list(each.shape)) for name, each in model.state_dict().items()},
        "attention": "flash_attention_2" if packed else "sdpa",
        "settings": {"temperature": TEMPERATURE},
    }
    script = {
        STRATEGY: strategy,
        PACKED: packed,
        f"{MODEL}.use_fused_kernels": fault == "fused",
        f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": dtype,
        f"{ACTOR}.ulysses_sequence_parallel_size": int(parallel),
        f"{ACTOR}.megatron.dtype": dtype,
        f"{ACTOR}.megatron.vanilla_mbridge": True,
        f"{ACTOR}.megatron.tensor_model_parallel_size": int(parallel),
        f"{ACTOR}.megatron.expert_model_parallel_size": 2 if kind == "qwen3_moe" else 1,
    }
    asked["trainer"] = _trainer(Settings(script), 2, [])
    (folder / "ask.json").write_text(json.dumps(asked))
    prompts = [[5 + (7 * n + row) % 500 for n in range(length)] for row, length in enumerate(LENGTHS)]
    engine = generated(copy.deepcopy(model), prompts, NEW, TEMPERATURE)
    found = compare(model, trained(folder, asked, engine.batch, model), engine, Sampling(TEMPERATURE))
    print("ANSWER " + json.dumps(content(found, [])))


if __name__ == "__main__":
    main()
