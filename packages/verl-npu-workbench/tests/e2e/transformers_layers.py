"""answer ISSUE FOLDER, compare ISSUE FOLDER: the layers of two releases of transformers for a reported fault.

`answer` makes a small random model, and records this release's answers with a cache. If the fault depends on chunks,
it records how this release reads prompts in chunks. `compare` computes the same tokens in another release without a
cache, as a trainer does, and prints one line of JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from verl_npu_workbench.layers.causes import Reason
from verl_npu_workbench.layers.comparing import compare, content
from verl_npu_workbench.layers.computing import _load, generated
from verl_npu_workbench.layers.recording import Batch, Recorder, Recording, record, recorded
from vllm_ascend_layers import YARN, change, make, make_in

LENGTHS, NEW, CHUNK = (72, 7, 140), 12, 64
IN_CHUNKS = {
    # The convolution and the delta rule of a later chunk begin with zeros.
    "transformers#45513": "qwen3_5",
    # Without positions, those of a later chunk begin with 0.
    "transformers#42508": "qwen2_5_vl",
}
"""Faults that depend on chunks, and the models that show them."""


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


def read(model: Any, prompts: list[list[int]], size: int) -> Recording:
    """Record how a model reads prompts in chunks of a size."""
    recorder = Recorder()
    with torch.no_grad(), recorded(model, recorder):
        for row, prompt in enumerate(prompts):
            cache = None
            for begin in range(0, len(prompt), size):
                part = prompt[begin : begin + size]
                recorder.begin([(row, at) for at in range(begin, begin + len(part))])
                cache = model(input_ids=torch.tensor([part]), past_key_values=cache, use_cache=True).past_key_values
    # A token that no model reads follows each prompt.
    return recorder.recording(Batch(tuple((*each, 0) for each in prompts), tuple(map(len, prompts))), model.dtype)


def main() -> None:
    """Answer, or compare and print."""
    step, issue, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    if step == "answer":
        if issue in IN_CHUNKS:
            make_in(IN_CHUNKS[issue], "float32", folder / "model")
        else:
            make_reported(REPORTED[issue], folder / "model")
    model = _load({"engine": {"model": str(folder / "model")}}, torch.float32, "sdpa")
    if step == "answer":
        prompts = [[5 + (7 * n + row) % 500 for n in range(length)] for row, length in enumerate(LENGTHS)]
        whole = [read(model, prompts, size) for size in (CHUNK, max(LENGTHS))] if issue in IN_CHUNKS else []
        made = whole or [generated(model, prompts, NEW, 1.0)]
        torch.save([(each.batch, dict(each.values)) for each in made], folder / "engine.pt")
        print("ANSWER {}")
        return
    engine, *whole = (
        Recording(batch, model.dtype, values) for batch, values in torch.load(folder / "engine.pt", weights_only=False)
    )
    again = dict(zip((Reason.CHUNKS,), whole, strict=False))
    print("ANSWER " + json.dumps(content(compare(model, record(model, engine.batch), engine, reruns=again), [])))


if __name__ == "__main__":
    main()
