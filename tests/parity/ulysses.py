"""One rank of Ulysses sequence parallelism: `python -m tests.parity.ulysses npu FILE` with RANK, WORLD_SIZE, INIT.

With `cpu` it is the reference: one process, the whole sequence, nothing of verl-npu.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from . import cases

MODELS = ("qwen2", "qwen3", "qwen3_moe")
LENGTHS = (5, 1, 8)


def reference(model: str) -> dict[str, torch.Tensor]:
    """Logits and gradients of the whole packed sequence."""
    case = cases.Case(model, "packed", 64, "float32")
    made = cases.model(case, "eager")
    inputs, _ = cases.batch(case, packed_by_mask=True)
    return _result(made, made(**inputs, use_cache=False).logits, weights(model))


def weights(model: str) -> torch.Tensor:
    """What the logits [1, seqlen, vocabulary] are summed with."""
    return torch.randn(1, sum(LENGTHS), cases.VOCABULARY, generator=torch.Generator().manual_seed(17))


def _result(model: Any, logits: torch.Tensor, factors: torch.Tensor) -> dict[str, torch.Tensor]:
    (logits * factors.to(logits.device)).sum().backward()
    gradients = {
        f"grad {n}": p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()
    }
    return {"logits": logits.detach(), **gradients}


def rank(model: str) -> dict[str, torch.Tensor]:
    """Logits of the whole sequence and the sum of all ranks' gradients, computed by half of the tokens on each."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils.ulysses import get_ulysses_sequence_parallel_group, ulysses_pad_and_slice_inputs

    case = cases.Case(model, "packed", 64, "float32")
    made = cases.model(case, "flash_attention_2").to("npu")
    world = torch.distributed.get_world_size()
    apply_monkey_patch(made, ulysses_sp_size=world)
    inputs, _ = cases.batch(case, packed_by_mask=False)
    ids, positions, padding = ulysses_pad_and_slice_inputs(
        inputs["input_ids"].npu(), inputs["position_ids"].npu(), sp_size=world
    )
    if padding:
        raise ValueError(f"expected a length that {world} ranks share evenly, found {padding} tokens too few")
    logits = made(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False).logits
    here, length = torch.distributed.get_rank(), ids.shape[1]
    result = _result(made, logits, weights(model)[:, here * length : (here + 1) * length])
    parts = [torch.empty_like(result["logits"]) for _ in range(world)]
    group = get_ulysses_sequence_parallel_group()
    torch.distributed.all_gather(parts, result["logits"].contiguous(), group=group)
    result["logits"] = torch.cat(parts, dim=1)
    for name, value in result.items():
        if name != "logits":
            torch.distributed.all_reduce(value, group=group)
    return {name: value.cpu() for name, value in result.items()}


def main() -> None:
    """Compute every model, and save the results of rank 0."""
    side, path = sys.argv[1:]
    torch.set_num_threads(1)
    if side == "cpu":
        torch.save({model: reference(model) for model in MODELS}, path)
        return
    import verl  # noqa: F401
    from verl.utils.ulysses import set_ulysses_sequence_parallel_group

    torch.npu.set_device(int(os.environ["RANK"]))
    here, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("hccl", init_method=os.environ["INIT"], rank=here, world_size=size)
    set_ulysses_sequence_parallel_group(torch.distributed.group.WORLD)
    results = {model: rank(model) for model in MODELS}
    if torch.distributed.get_rank() == 0:
        torch.save(results, path)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
