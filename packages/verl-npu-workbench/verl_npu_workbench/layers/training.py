"""Records what verl's own FSDP or Megatron engine computes for a batch: FOLDER, on each rank of a process group."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from verl_npu.features.weight_sync.transport.tensors import digest_of

from ..processes import captured, own_python
from . import ASK, megatron
from .recording import LOGPROBS, Batch, Place, Recorder, Recording, recorded, weights_of

_ENGINES = {"fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "mindspeed"}
"""The trainers' strategies, and the folders of verl's engines for them on NPUs."""


def supported(strategy: str) -> bool:
    """Return whether the installed verl has a training engine for this strategy."""
    engine = _ENGINES.get(strategy)
    try:
        return engine is not None and find_spec(f"verl.workers.engine.{engine}.transformer_impl") is not None
    except ImportError:  # verl is not installed, or cannot be imported
        return False


def trained(folder: Path, asked: dict[str, Any], batch: Batch, model: Any) -> Recording:
    """Run the model on a batch on all ranks, and combine the rows that the ranks return.

    Raises:
        RuntimeError: a rank fails. The message is the last line of the rank's output.
    """
    (folder / ASK).write_text(json.dumps({**asked, "tokens": batch.tokens, "lengths": batch.prompts}))
    ranks = asked["trainer"]["ranks"]
    program = ("torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d")
    words = ("-m", *program, "--rdzv-endpoint", "127.0.0.1:0", "-m", __spec__.name, str(folder))
    done = captured(own_python(*words), cwd=folder)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line and "ChildFailedError" not in line]
        raise RuntimeError(said[-1] if said else done.stderr[-500:])
    recorder, weights = Recorder(), dict[str, torch.Tensor]()
    for rank in range(ranks):
        made = torch.load(folder / f"trainer-{rank}.pt")
        for name, each in made["taken"].items():
            recorder.taken[name] += each
        weights.update(made["weights"])
    return recorder.recording(batch, getattr(torch, asked["trainer"]["dtype"]), weights_of(model, weights))


def main(folder: Path) -> None:
    """Compute this rank's rows, and write them to the folder."""
    from verl.utils import tensordict_utils
    from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device

    asked = json.loads((folder / ASK).read_text())
    rank = int(os.environ["RANK"])
    get_torch_device().set_device(rank)
    torch.distributed.init_process_group(f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}")
    engine = _engine(asked)
    # Each group of ranks has rows of its own, and the ranks of a group share them.
    rows = range(engine.get_data_parallel_rank(), len(asked["tokens"]), engine.get_data_parallel_size())
    tokens = [torch.tensor(asked["tokens"][row]) for row in rows]
    packed = [(row, at) for row, each in zip(rows, tokens, strict=True) for at in range(len(each))]

    def nested(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    data = tensordict_utils.get_tensordict(
        {
            "input_ids": nested(tokens),
            "position_ids": nested([torch.arange(len(each)) for each in tokens]),
            # As in verl's trainer, it has a column for each token of the longest answer.
            "loss_mask": torch.nn.utils.rnn.pad_sequence(
                [torch.ones(len(each) - asked["lengths"][row]) for row, each in zip(rows, tokens, strict=True)],
                batch_first=True,
            ),
        },
        {
            "temperature": asked["settings"]["temperature"],
            "use_remove_padding": asked["trainer"]["remove_padding"],
            "use_fused_kernels": bool(asked["trainer"]["fused"]),
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": len(rows),
            "pad_token_id": 0,
        },
    )
    recorder = Recorder()
    with engine.eval_mode(), _recorded(engine, asked["trainer"], recorder, packed):
        made = engine.forward_backward_batch(data, loss_function=None, forward_only=True)
        recorder.begin(packed)
        if engine.is_mp_src_rank_with_outputs():
            recorder.add(LOGPROBS, made["model_output"]["log_probs"].values()[:, None])
    weights, dtype = {}, getattr(torch, asked["engine"]["dtype"])
    # All ranks gather each weight, and one writes it.
    for name, weight in engine.get_per_tensor_param()[0]:
        if rank:
            continue
        sent, held = asked["weights"].get(name), weight.detach().cpu().to(dtype)
        if sent and digest_of(held) != sent[0]:
            weights[name] = held
    torch.save({"taken": dict(recorder.taken), "weights": weights}, folder / f"trainer-{rank}.pt")
    torch.distributed.destroy_process_group()


def _recorded(
    engine: Any, trainer: dict[str, Any], recorder: Recorder, packed: list[Place]
) -> AbstractContextManager[None]:
    """Record what the engine computes for these places of this rank's group."""
    lengths = Counter(row for row, _ in packed)
    if trainer["strategy"] == "megatron":
        places = megatron.padded(lengths, trainer["shared"], trainer["remove_padding"])
        return megatron.recorded(engine, recorder, places)
    size = -(-len(packed) // trainer["shared"])
    own: list[Place | None] = [*packed[int(os.environ["RANK"]) % trainer["shared"] * size :][:size]]
    if not trainer["remove_padding"]:
        longest = max(lengths.values())
        own = [(row, at) if at < length else None for row, length in lengths.items() for at in range(longest)]
    recorder.begin(own)
    return recorded(engine.module, recorder)


def _engine(asked: dict[str, Any]) -> Any:
    """Return verl's engine with the model, as the trainer of a script has it."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers import config
    from verl.workers.engine import EngineRegistry

    trainer = asked["trainer"]
    model = config.HFModelConfig(
        path=asked["engine"]["model"],
        load_tokenizer=False,
        use_remove_padding=trainer["remove_padding"],
        use_fused_kernels=bool(trainer["fused"]),
        fused_kernel_options={"impl_backend": trainer["fused"]},
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": asked["attention"]},
    )
    # The Megatron engine asks the tokenizer for a pad token.
    model.tokenizer = SimpleNamespace(pad_token_id=0)
    kind = "Mcore" if trainer["strategy"] == "megatron" else "FSDP"
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=trainer["strategy"],
        model_config=model,
        engine_config=getattr(config, f"{kind}EngineConfig")(**trainer["engine"]),
        optimizer_config=getattr(config, f"{kind}OptimizerConfig")(lr=1e-6, total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


if __name__ == "__main__":
    main(Path(sys.argv[1]))
