"""One rank of Ulysses sequence parallelism: `python -m tests.parity.ulysses npu FILE` with RANK, WORLD_SIZE, INIT.

With `cpu` it is the reference: one process with the whole sequence and without verl-npu.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import torch
from verl_npu_workbench.prove.parity import cases
from verl_npu_workbench.prove.parity.side import import_verl

MODELS = ("qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
# verl's own attention for this model casts float32 to bfloat16.
DTYPES = {"qwen2_5_vl": "bfloat16"}
LENGTHS = (5, 1, 8)
# The position of the picture's tokens in the last sequence.
PICTURE = slice(8, 12)


def models() -> list[str]:
    """Return the MODELS that this transformers has."""
    return [model for model in MODELS if model in {case.model for case in cases.cases()}]


def packed(model: Any, name: str, *, by_mask: bool) -> dict[str, torch.Tensor]:
    """Return three sequences in one row [1, seqlen], with a picture in the last for vision models."""
    inputs, _ = cases.batch(cases.Case(name, "packed", 64, "float32"), packed_by_mask=by_mask)
    if "vl" not in name:
        return inputs
    ids = inputs["input_ids"]
    ids[:, PICTURE.start - 1 : PICTURE.stop + 1] = torch.tensor(
        [cases.VISION_START, *[cases.IMAGE] * 4, cases.VISION_END]
    )
    grid = torch.tensor([[1, 4, 4]])
    inputs["pixel_values"] = torch.randn(16, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(19))
    inputs["image_grid_thw"] = grid
    last = LENGTHS[-1]
    known = inspect.signature(model.model.get_rope_index).parameters
    kinds = {"mm_token_type_ids": (ids == cases.IMAGE).long()[:, -last:]} if "mm_token_type_ids" in known else {}
    pictured, _ = model.model.get_rope_index(input_ids=ids[:, -last:], image_grid_thw=grid, **kinds)
    plain = inputs["position_ids"].expand(3, 1, -1)
    axes = torch.cat([plain[:, :, :-last], pictured], dim=-1)
    # The first row, of the text alone, shows where sequences begin: verl's layout, and transformers' from 4.57 on.
    inputs["position_ids"] = axes if by_mask else torch.cat([plain[:1], axes])
    return inputs


def dtype_of(name: str) -> str:
    """Return the dtype in which a model is compared."""
    return DTYPES.get(name, "float32")


def reference(name: str) -> dict[str, dict[str, torch.Tensor]]:
    """Return logits and gradients of the whole packed sequence, in float32 and in the dtype of the comparison."""
    given = getattr(torch, dtype_of(name))

    def compute(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        made = cases.model(cases.Case(name, "packed", 64, "float32"), "eager").to(given).to(dtype)
        inputs = packed(made, name, by_mask=True)
        return _result(made, made(**inputs, use_cache=False).logits, weights())

    return {"values": compute(torch.float32)} | ({} if given is torch.float32 else {"unfused": compute(given)})


def weights() -> torch.Tensor:
    """Return the weights of the sum of the logits [1, seqlen, vocabulary]."""
    return torch.randn(1, sum(LENGTHS), cases.VOCABULARY, generator=torch.Generator().manual_seed(17))


def _result(model: Any, logits: torch.Tensor, factors: torch.Tensor) -> dict[str, torch.Tensor]:
    (logits.float() * factors.to(logits.device)).sum().backward()
    gradients = {
        f"grad {n}": p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()
    }
    return {name: value.detach().float() for name, value in ({"logits": logits} | gradients).items()}


def rank(name: str) -> dict[str, torch.Tensor]:
    """Return the logits of the whole sequence and the sum of all ranks' gradients; each rank computes its share."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils.ulysses import get_ulysses_sequence_parallel_group, ulysses_pad, ulysses_pad_and_slice_inputs

    made = cases.model(cases.Case(name, "packed", 64, "float32"), "flash_attention_2")
    inputs = packed(made, name, by_mask=False)
    made.to(getattr(torch, dtype_of(name))).npu()
    world = torch.distributed.get_world_size()
    apply_monkey_patch(made, ulysses_sp_size=world, use_remove_padding=True)
    # A vision model gets all tokens and takes its share of their embeddings.
    share = ulysses_pad if "vl" in name else ulysses_pad_and_slice_inputs
    inputs["input_ids"], inputs["position_ids"], padding = share(
        inputs["input_ids"].npu(), inputs["position_ids"].npu(), sp_size=world
    )
    if padding:
        raise ValueError(f"expected a length that {world} ranks share evenly; found {padding} tokens too few")
    inputs = {key: value.npu() for key, value in inputs.items()}
    logits = made(**inputs, attention_mask=None, use_cache=False).logits
    here, length = torch.distributed.get_rank(), sum(LENGTHS) // world
    result = _result(made, logits, weights()[:, here * length : (here + 1) * length])
    parts = [torch.empty_like(result["logits"]) for _ in range(world)]
    group = get_ulysses_sequence_parallel_group()
    torch.distributed.all_gather(parts, result["logits"].contiguous(), group=group)
    result["logits"] = torch.cat(parts, dim=1)
    for key, value in result.items():
        if key != "logits":
            torch.distributed.all_reduce(value, group=group)
    return {key: value.cpu() for key, value in result.items()}


def main() -> None:
    """Compute every model, and save the results of rank 0."""
    side, path = sys.argv[1:]
    torch.set_num_threads(1)
    if side == "cpu":
        torch.save({model: reference(model) for model in models()}, path)
        return
    import_verl()
    from verl.utils.ulysses import set_ulysses_sequence_parallel_group

    torch.npu.set_device(int(os.environ["RANK"]))
    here, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("hccl", init_method=os.environ["INIT"], rank=here, world_size=size)
    set_ulysses_sequence_parallel_group(torch.distributed.group.WORLD)
    results = {model: rank(model) for model in models()}
    if torch.distributed.get_rank() == 0:
        torch.save(results, path)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
