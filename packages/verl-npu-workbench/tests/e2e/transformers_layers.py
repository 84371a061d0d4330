"""answer ISSUE FOLDER, compare ISSUE FOLDER: the layers of two releases of transformers for a reported fault.

`answer` makes a small random model, and records this release's answers with a cache. `compare` computes the same
tokens in another release without a cache, as a trainer does, and prints one line of JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from verl_npu_workbench.layers.comparing import compare, content
from verl_npu_workbench.layers.computing import _load, generated
from verl_npu_workbench.layers.recording import Recording, record
from vllm_ascend_layers import YARN, change, make

LENGTHS, NEW = (72, 7, 140), 12


@dataclass(frozen=True, slots=True)
class Reported:
    """The model that shows a fault."""

    kind: str
    config: dict[str, object]
    sizes: dict[str, object] = field(default_factory=dict)


YARN_128 = {**YARN, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 1}
REPORTED = {
    # The ramp between scaled and other frequencies comes from the scaled number of positions.
    "transformers#36877": Reported("qwen2", YARN_128),
    # The factor comes from the sizes.
    "transformers#38224": Reported("qwen3", YARN),
    "transformers#38002": Reported(
        "qwen2", {"sliding_window": 32, "use_sliding_window": False, "rope_theta": 10000.0}
    ),
    # Experts of a group that was not chosen have the score 0, and those of a chosen one may have less.
    "transformers#45440": Reported("deepseek_v3", {}, GROUPS),
}


def make_reported(fault: Reported, folder: Path) -> None:
    """Write a small random model for a fault."""
    from safetensors.torch import load_file, save_file

    make(fault.kind, folder, **fault.sizes)
    change(folder, fault.config)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith("e_score_correction_bias"):
            weights[name] = -1 - torch.rand(weights[name].shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    """Answer, or compare and print."""
    step, issue, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    if step == "answer":
        make_reported(REPORTED[issue], folder / "model")
    model = _load({"engine": {"model": str(folder / "model")}}, torch.float32, "sdpa")
    if step == "answer":
        prompts = [[5 + (7 * n + row) % 500 for n in range(length)] for row, length in enumerate(LENGTHS)]
        made = generated(model, prompts, NEW, 1.0)
        torch.save((made.batch, dict(made.values)), folder / "engine.pt")
        print("ANSWER {}")
        return
    batch, values = torch.load(folder / "engine.pt", weights_only=False)
    engine = Recording(batch, model.dtype, values)
    print("ANSWER " + json.dumps(content(compare(model, record(model, batch), engine), [])))


if __name__ == "__main__":
    main()
