"""Measures the memory of a full-size training step on each NPU, without values.

It uses FSDP2 as verl does (float32 shards, bfloat16 computation, AdamW), on virtual NPUs with phantom memory, with one
process for each. Run `python benchmarks/phantom.py --npus 8 --sequence 4096 --recompute`. It prints one line of JSON:
the peak of each phase, the host memory of a process, and the time; or the error of an NPU with too little memory.
SIMULATED.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

GIB = 1 << 30
# hidden size, intermediate size, layers, heads, key heads, head size, vocabulary of Qwen3 models
SIZES = {"0.6b": (1024, 3072, 28, 16, 8, 128, 151936), "8b": (4096, 12288, 36, 32, 8, 128, 151936)}


def train(asked: argparse.Namespace, rank: int, init: str) -> dict[str, Any]:
    """Train two steps on one rank, and return the peak of each phase of the second step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM, Qwen3Config
    from virtual_ascend import description

    began = time.monotonic()
    torch.npu.set_device(rank)
    dist.init_process_group("cpu:gloo,npu:hccl", init_method=init, rank=rank, world_size=asked.npus)
    hidden, wide, layers, heads, key_heads, width, words = SIZES[asked.model]
    config = Qwen3Config(
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=width,
        vocab_size=words,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=asked.attention)
    if asked.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    mesh = init_device_mesh("npu", (asked.npus,))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=mixed)
    fully_shard(model, mesh=mesh, mp_policy=mixed).to_empty(device="npu")
    inverse = 1e-6 ** (torch.arange(0, width, 2) / width)
    model.model.rotary_emb.inv_freq = inverse.npu()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(words, (asked.batch, asked.sequence)).npu()
    peaks: dict[str, float] = {"weights": torch.npu.memory_allocated() / GIB}

    def phase(name: str) -> None:
        peaks[name] = round(torch.npu.max_memory_allocated() / GIB, 4)
        torch.npu.reset_peak_memory_stats()

    try:
        for _ in range(2):
            torch.npu.reset_peak_memory_stats()
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            phase("forward")
            loss.backward()
            phase("backward")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            phase("optimizer")
            optimizer.zero_grad()
    except torch.OutOfMemoryError as error:
        return {"rank": rank, "error": str(error), "seconds": round(time.monotonic() - began, 1)}
    peaks["left"] = round(torch.npu.memory_allocated() / GIB, 4)
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return {
        "simulated": description(),
        "rank": rank,
        "peaks_gib": peaks,
        "host_gib": round(host, 2),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Start the ranks, and print the result of the first one, or its error if it has too little memory."""
    asking = argparse.ArgumentParser(description="Peak memory of a full-size FSDP2 step, without values.")
    asking.add_argument("--model", choices=SIZES, default="8b")
    asking.add_argument("--npus", type=int, default=8)
    asking.add_argument("--batch", type=int, default=1)
    asking.add_argument("--sequence", type=int, default=4096)
    asking.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    asking.add_argument("--recompute", action="store_true")
    asking.add_argument("--phantom", default="1", help="MiB")
    asked = asking.parse_args()
    if "RANK" in os.environ:
        print(json.dumps(train(asked, int(os.environ["RANK"]), os.environ["INIT"])), flush=True)
        os._exit(0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "VERL_NPU": "off", "VIRTUAL_ASCEND": str(asked.npus), "OMP_NUM_THREADS": "1"}
        environ |= {"VIRTUAL_ASCEND_PHANTOM": asked.phantom, "INIT": f"file://{folder}/meet"}
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv], env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(asked.npus)
        ]
        first = ranks[0].communicate()[0]
        for rank in ranks:
            rank.wait()
    if not first.strip():
        raise SystemExit("the first rank ended without a result; see its error above")
    found = json.loads(first.splitlines()[-1])
    print(json.dumps({**found, "seconds_in_all": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
