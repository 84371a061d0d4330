"""KIND DTYPE STRATEGY ULYSSES FAULT FOLDER: the layers of verl's own FSDP engine on two virtual NPUs beside
transformers', which answers with a cache; prints one line of JSON. FAULT is none, or weight, a stale one."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

from vllm_ascend_layers import make_in, spoil

LENGTHS, NEW, TEMPERATURE = (7, 20, 100), 12, 0.7


def main() -> None:
    """Compare, and print."""
    import torch
    from transformers import AutoModelForCausalLM
    from verl_npu_workbench.layers.comparing import compare
    from verl_npu_workbench.layers.computing import generated
    from verl_npu_workbench.layers.report import content
    from verl_npu_workbench.layers.training import trained

    from verl_npu.features.weight_sync.transport.tensors import digest_of

    kind, dtype, strategy, ulysses, fault = sys.argv[1:6]
    folder, torch_dtype = Path(sys.argv[6]), getattr(torch, dtype)
    torch.set_num_threads(1)
    made, served = folder / "model", folder / "served"
    make_in(kind, dtype, made)
    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch_dtype).eval()
    if fault == "weight":
        spoil(made, served)
    asked = {
        "engine": {"model": str(served if fault == "weight" else made), "dtype": dtype},
        "weights": {name: (digest_of(each), list(each.shape)) for name, each in model.state_dict().items()},
        "attention": "flash_attention_2" if dtype == "bfloat16" else "sdpa",
        "settings": {"temperature": TEMPERATURE},
    }
    # Flash attention takes packed rows only.
    packed = dtype == "bfloat16"
    trainer = {"strategy": strategy, "ranks": 2, "ulysses": int(ulysses), "remove_padding": packed}
    asked["trainer"] = {**trainer, "model_dtype": "fp32"}
    (folder / "ask.json").write_text(json.dumps(asked))
    prompts = [[5 + (7 * n + row) % 500 for n in range(length)] for row, length in enumerate(LENGTHS)]
    engine = generated(copy.deepcopy(model), prompts, NEW, TEMPERATURE)
    found = compare(model, trained(folder, asked, engine.batch, model), engine, temperature=TEMPERATURE)
    print("ANSWER " + json.dumps(content(found, [])))


if __name__ == "__main__":
    main()
