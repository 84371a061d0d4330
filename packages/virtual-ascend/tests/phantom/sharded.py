"""Print the costs of cases of several NPUs: `python -m tests.phantom.sharded [CASE…]`, once per rank."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, Qwen3Config

from .measuring import Case, run_ranks, trained

HIDDEN, VOCABULARY, LENGTH = 128, 1000, 96


def _rank() -> int:
    return int(os.environ["RANK"])


def _size() -> int:
    return int(os.environ["WORLD_SIZE"])


def _model(**changes: Any) -> nn.Module:
    shape = {"hidden_size": HIDDEN, "intermediate_size": 260, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCABULARY, "pad_token_id": 0}
    return AutoModelForCausalLM.from_config(Qwen3Config(**{**shape, **changes}), dtype=torch.float32).train()


def _step(model: nn.Module) -> Callable[[], Tensor]:
    ids = torch.randint(1, VOCABULARY, (2, LENGTH)).npu()
    return lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


@functools.cache
def _mesh() -> DeviceMesh:
    return init_device_mesh("npu", (_size(),))


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)


def _fsdp1(recompute: bool = False, **how: Any) -> Case:
    def case() -> None:
        model = _model()
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model.model.layers[0])})
        mixed = MixedPrecision(torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32)
        how.setdefault("sync_module_states", True)
        model = FullyShardedDataParallel(model, auto_wrap_policy=wrap, mixed_precision=mixed, device_id=_rank(), **how)
        trained(_step(model), _adamw(model))
        _let_go_of_views(model)

    return case


def _let_go_of_views(model: nn.Module) -> None:
    """Remove the views of flat parameters that FSDP1 leaves in the layers.

    Their gradient functions hold the flat parameters, which hold the layers. With torch 2.8 Python does not see that
    cycle, and the memory at the end would depend on which part of the model is freed first.
    """
    for layer in model.modules():
        for name in [name for name, value in vars(layer).items() if isinstance(value, Tensor)]:
            delattr(layer, name)


def _fsdp2(recompute: bool = False, **how: Any) -> Case:
    def case() -> None:
        model = _model()
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        _shard(model, **how)
        trained(_step(model), _adamw(model))

    return case


def _shard(model: nn.Module, **how: Any) -> nn.Module:
    mixed = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=_mesh(), mp_policy=mixed, **how)
    return fully_shard(model, mesh=_mesh(), mp_policy=mixed, **how)


def fsdp2_loaded() -> None:
    """Load a model of which rank 0 has the weights on the host, and the others only shapes."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model = _model()
    whole = model.state_dict() if _rank() == 0 else {}
    with torch.device("meta"):
        model = _model()
    _shard(model).to_empty(device="npu")
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    model.model.rotary_emb.inv_freq = (1e-6 ** (torch.arange(0, 32, 2) / 32)).npu()
    trained(_step(model), _adamw(model))


def fsdp2_lora() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(_model(), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=_mesh())
    fully_shard(model, mesh=_mesh())
    trained(_step(model), _adamw(model))


def ddp() -> None:
    model = DistributedDataParallel(_model().npu(), device_ids=[_rank()])
    trained(_step(model), _adamw(model))


class _Block(nn.Module):
    """A transformer layer whose matrices can be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def _tensor_parallel(sequences: bool) -> Case:
    def case() -> None:
        model = nn.Sequential(*(_Block() for _ in range(3))).npu()
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequences:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            }
        for block in model:
            parallelize_module(block, _mesh(), plan)

        def step() -> Tensor:
            x = torch.ones(4, LENGTH, HIDDEN).npu()
            if sequences:
                from torch.distributed.tensor import distribute_tensor

                x = distribute_tensor(x, _mesh(), [Shard(1)])
                return model(x).redistribute(placements=[Replicate()]).to_local().square().mean()
            return model(x).square().mean()

        # Whole and divided weights have no norm in common.
        trained(step, torch.optim.AdamW(model.parameters(), foreach=False), clip=sequences)

    return case


def pipeline() -> None:
    stage = nn.Sequential(*(_Block() for _ in range(2))).npu()
    schedule = Schedule1F1B(
        PipelineStage(stage, _rank(), _size(), torch.device("npu", _rank())),
        4,
        lambda out, target: (out - target).square().mean(),
    )
    optimizer = _adamw(stage)
    batch = torch.ones(8, LENGTH, HIDDEN).npu()
    for _ in range(2):
        schedule.step(*([batch] if _rank() == 0 else []), **({"target": batch} if _rank() == _size() - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()


class _Exchange(torch.autograd.Function):
    """Sends rows to other ranks, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, out_counts: list[int], in_counts: list[int]) -> Tensor:
        ctx.counts = out_counts, in_counts
        received = rows.new_empty(sum(out_counts), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), out_counts, in_counts)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        out_counts, in_counts = ctx.counts
        back = gradient.new_empty(sum(in_counts), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), in_counts, out_counts)
        return back, None, None


def expert_parallel() -> None:
    """Send tokens to the ranks of their experts, unevenly: some messages are large enough to be phantoms."""
    experts = nn.Linear(HIDDEN, HIDDEN).npu()

    def step() -> Tensor:
        tokens = torch.ones(384, HIDDEN, device="npu", requires_grad=True)
        mine = torch.tensor([8 + 300 * (rank == _rank()) for rank in range(_size())])
        sent = mine.npu()
        theirs = torch.empty_like(sent)
        dist.all_to_all_single(theirs, sent)
        there = _Exchange.apply(tokens[: int(mine.sum())], theirs.tolist(), mine.tolist())
        return _Exchange.apply(experts(there), mine.tolist(), theirs.tolist()).square().mean()

    trained(step, _adamw(experts))


def ulysses() -> None:
    """Exchange all heads of a part of the sequence for a part of the heads of all of it, and back, as lists."""
    project = nn.Linear(HIDDEN, HIDDEN).npu()

    def swap(x: Tensor) -> Tensor:
        outputs = [torch.empty_like(part) for part in x.chunk(_size(), 1)]
        dist.all_to_all(outputs, [part.contiguous() for part in x.chunk(_size(), 1)])
        return torch.cat(outputs)

    for _ in range(2):
        swap(project(torch.ones(256, HIDDEN, device="npu")).detach())


def collectives() -> None:
    """Run each kind of collective, on small tensors, large ones, and parts of large ones."""
    rank, size = _rank(), _size()
    for rows in (2, 512):
        own = torch.ones(rows, 64, device="npu")
        part = torch.ones(2048, 64, device="npu")[:rows]
        for x in (own, part):
            dist.all_reduce(x)
            dist.reduce(x, 0)
            dist.broadcast(x, 0)
            uneven = [torch.empty(rows + other, 64, device="npu") for other in range(size)]
            dist.all_gather(uneven, torch.ones(rows + rank, 64, device="npu"))
            dist.all_gather_into_tensor(torch.empty(rows * size, 64, device="npu"), x)
            dist.reduce_scatter_tensor(x, torch.ones(rows * size, 64, device="npu"))
            dist.reduce_scatter(x, [torch.ones(rows, 64, device="npu") for _ in range(size)])
            dist.gather(x, [torch.empty_like(own) for _ in range(size)] if rank == 0 else None)
            dist.scatter(own, [x.contiguous() for _ in range(size)] if rank == 0 else None)
            if rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(own, 0)
    dist.barrier()


def objects() -> None:
    """Send Python objects: these messages are small, and arrive."""
    gathered: list[Any] = [None] * _size()
    dist.all_gather_object(gathered, {"rank": _rank(), "text": "x" * 5000})
    assert [each["rank"] for each in gathered] == list(range(_size()))
    total = torch.tensor([_rank() + 1.0], device="npu")
    dist.all_reduce(total)
    assert total.item() == sum(range(_size() + 1))


CASES: dict[str, Case] = {
    "FSDP1": _fsdp1(),
    "FSDP1, recomputation": _fsdp1(recompute=True),
    "FSDP1, original parameters": _fsdp1(use_orig_params=True),
    "FSDP1, offload": _fsdp1(cpu_offload=CPUOffload(offload_params=True)),
    "FSDP2": _fsdp2(),
    "FSDP2, recomputation": _fsdp2(recompute=True),
    "FSDP2, kept whole": _fsdp2(reshard_after_forward=False),
    "FSDP2, offload": _fsdp2(offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "FSDP2, loaded by rank 0": fsdp2_loaded,
    "FSDP2, LoRA": fsdp2_lora,
    "DDP": ddp,
    "tensor parallel": _tensor_parallel(sequences=False),
    "tensor and sequence parallel": _tensor_parallel(sequences=True),
    "pipeline": pipeline,
    "expert parallel": expert_parallel,
    "Ulysses": ulysses,
    "collectives": collectives,
    "objects": objects,
}

if __name__ == "__main__":
    run_ranks(CASES)
