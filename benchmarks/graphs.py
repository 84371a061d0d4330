"""Measures what graphs cost on virtual NPUs: the replay and the capture of a decoding step, against the eager step.

    python benchmarks/graphs.py [--layers 8] [--width 512] [--turns 15]

The step is that of a small transformer with a cache: embedding, norms, projections, attention over the cache, a gated
MLP. Both are measured in turns, in CPU time, so that a busy machine slows neither. A ratio is the median of the turns'
ratios. It prints one line of JSON. SIMULATED: on a real NPU a graph saves the time for starting kernels. Here it only
saves the time of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

GOAL = 1.1
BATCHES = (1, 8, 64)
HEADS, CACHED, WORDS = 8, 128, 1024


def step_of(layers: int, width: int, batch: int) -> Callable[[], Any]:
    """Return a decoding step whose inputs and cache stay at the same addresses."""
    import torch
    from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).mul(0.02).npu()

    words, tokens = weight(WORDS, width), torch.randint(WORDS, (batch,)).npu()
    norm = torch.ones(width).npu()
    blocks = [
        {
            "qkv": weight(3 * width, width),
            "out": weight(width, width),
            "up": weight(4 * width, width),
            "down": weight(width, 2 * width),
            "keys": weight(batch, HEADS, CACHED, width // HEADS),
            "values": weight(batch, HEADS, CACHED, width // HEADS),
        }
        for _ in range(layers)
    ]

    def step() -> torch.Tensor:
        x = embedding(tokens, words)
        for block in blocks:
            q, k, v = linear(rms_norm(x, (width,), norm), block["qkv"]).unflatten(-1, (3, HEADS, 1, -1)).unbind(1)
            block["keys"][:, :, -1:].copy_(k)
            block["values"][:, :, -1:].copy_(v)
            seen = scaled_dot_product_attention(q, block["keys"], block["values"])
            x = x + linear(seen.flatten(1), block["out"])
            gate, up = linear(rms_norm(x, (width,), norm), block["up"]).chunk(2, -1)
            x = x + linear(silu(gate) * up, block["down"])
        return linear(x, words)

    return step


def seconds(call: Callable[[], object], count: int) -> float:
    """Return the CPU time of one call, of this process with all its threads."""
    import torch

    began = time.process_time()
    for _ in range(count):
        call()
    torch.npu.synchronize()
    return (time.process_time() - began) / count


def measured(layers: int, width: int, batch: int, turns: int) -> dict[str, float]:
    """Return the milliseconds of an eager step and of its replay, their ratio, and the time of a capture in steps."""
    import torch

    step = step_of(layers, width, batch)
    with torch.no_grad():
        step()
        began, graph = time.process_time(), torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            out = step()
        capture = time.process_time() - began
        graph.replay()
        if not torch.equal(out, step()):
            raise SystemExit("expected a replay to give the same values as the step; found other values")
        count = max(3, int(0.2 / seconds(step, 3)))
        pairs = []
        for turn in range(turns):
            both = {call: seconds(call, count) for call in ((step, graph.replay), (graph.replay, step))[turn % 2]}
            pairs.append((both[step], both[graph.replay]))
    eager = statistics.median(pair[0] for pair in pairs)
    return {
        "eager_ms": eager * 1e3,
        "replay_ms": statistics.median(pair[1] for pair in pairs) * 1e3,
        "ratio": statistics.median(replay / plain for plain, replay in pairs),
        "capture_in_steps": capture / eager,
    }


def main() -> None:
    """Measure each batch size, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=15)
    asked = parser.parse_args()
    os.environ.setdefault("VIRTUAL_ASCEND", "1")
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {batch: measured(asked.layers, asked.width, batch, asked.turns) for batch in BATCHES}
    print(json.dumps({"goal": GOAL, "batches": found, "reached": all(one["ratio"] <= GOAL for one in found.values())}))


if __name__ == "__main__":
    main()
