"""KIND FOLDER [RANK]: two data-parallel engines of two ranks each, of the real vllm-ascend on four virtual NPUs, as a
rollout at 796871d7 makes them; prints a line of JSON for each rank.

The first engine has more to answer than the second, which takes steps without requests meanwhile. Then other weights
are synced, once unchanged, and once for each rank with one bit of it changed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"model": "qwen3"},
    "qwen3_moe": {"model": "qwen3_moe", "expert_parallel": True},
    "qwen3_moe_tp": {"model": "qwen3_moe"},
}
TENSOR, DATA = 2, 2
WORLD = TENSOR * DATA


def start(kind: str, folder: Path) -> None:
    """Run all ranks, and print the answer of each."""
    from vllm_ascend_tokens import expected, make

    make(KINDS[kind]["model"], folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(WORLD), "VIRTUAL_ASCEND": str(WORLD)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, kind, str(folder), str(rank)],
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(WORLD)
    ]
    try:
        ended = [rank.wait(timeout=550) for rank in ranks]
        if any(ended):
            sys.exit(f"the ranks ended with {ended}")
    finally:
        for rank in ranks:
            rank.kill()
    for said in [
        *(json.loads(_answer(folder, rank).read_text()) for rank in range(WORLD)),
        {"expected": expected(folder)},
    ]:
        print("ANSWER " + json.dumps(said), flush=True)


def _answer(folder: Path, rank: int) -> Path:
    """Return the file for a rank's answer: on one output the lines of several ranks mix."""
    return folder / f"answer-{rank}.json"


def serve(kind: str, folder: Path, rank: int) -> None:
    """Run one rank."""
    import torch
    from torch import distributed
    from vllm import SamplingParams
    from vllm_ascend_tokens import LENGTHS, NEW, engine

    from verl_npu.features.rollout.data_parallel import join

    torch.npu.set_device(rank)
    distributed.init_process_group("cpu:gloo,npu:hccl")
    join({"tensor_model_parallel_size": TENSOR, "dp_model_parallel_size": DATA})
    served = engine(
        folder,
        tensor_parallel_size=TENSOR,
        distributed_executor_backend="external_launcher",
        enable_sleep_mode=True,
        enable_expert_parallel=KINDS[kind].get("expert_parallel", False),
        seed=0,
    )
    lengths = LENGTHS if rank < TENSOR else LENGTHS[:1]
    settings = SamplingParams(temperature=0, max_tokens=NEW if rank < TENSOR else NEW // 2, ignore_eos=True)

    def tokens() -> list[list[int]]:
        prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in lengths]
        return [list(answer.outputs[0].token_ids) for answer in served.generate(prompts, settings, use_tqdm=False)]

    config = served.llm_engine.vllm_config.parallel_config
    said: dict[str, Any] = {
        "rank": rank,
        "engine": [config.data_parallel_rank, config.data_parallel_size],
        "awake": tokens(),
    }
    served.sleep(level=1)
    served.wake_up()
    said["after sleep"] = tokens()
    model = served.llm_engine.model_executor.driver_worker.worker.model_runner.model
    said["experts"] = [tuple(m.w13_weight.shape) for m in model.modules() if hasattr(m, "w13_weight")][:1]
    said["proofs"] = [sync(model, folder, seed, rank, seed - 1) for seed in range(WORLD + 1)]
    distributed.barrier()
    _answer(folder, rank).write_text(json.dumps(said))


def sync(model: Any, folder: Path, seed: int, rank: int, changed: int) -> list[list[str]]:
    """Sync weights, change one bit on one rank, and return the proof's findings here."""
    import torch
    from safetensors.torch import load_file

    from verl_npu.features.weight_sync.engines.processing import refresh_copies_on_load
    from verl_npu.features.weight_sync.engines.proof import Proof

    for module in model.modules():
        for leaf in ("w13_weight", "w2_weight"):
            if hasattr(module, leaf):
                getattr(module, leaf).weight_loader = module.weight_loader
    refresh_copies_on_load(model)
    generator = torch.Generator().manual_seed(seed)
    saved = load_file(folder / "model.safetensors")
    sent = {key: torch.randn(value.shape, generator=generator) * 0.08 for key, value in sorted(saved.items())}
    proof = Proof(model)
    for key, value in sent.items():
        proof.expect(key, value.npu())
    model.load_weights((key, value.npu()) for key, value in sent.items())
    if rank == changed:
        experts = [each for name, each in model.named_parameters() if name.endswith("w2_weight")]
        held = (experts or [model.get_parameter("model.layers.1.self_attn.o_proj.weight")])[-1]
        with torch.no_grad():
            held.view(torch.int32).view(-1)[77] ^= 1
    return [[each.source, each.found] for each in proof.conclude().differences]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if len(sys.argv) > 3:
        serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        start(sys.argv[1], Path(sys.argv[2]))
