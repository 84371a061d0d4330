"""Measures the cost of attention and experts beyond their arithmetic, before and after our patches.

Run `python benchmarks/attention.py` with verl and transformers installed. It counts how often a forward pass waits for
the device, and how many copies it makes of each expert. Virtual NPUs suffice, because these counts do not depend on
the device. It times the padding helpers against flash_attn's algorithm on this machine's CPU, in turns. It prints one
line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LAYERS = 4
# The operators that copy values from the device to the host, or need values to compute a shape.
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "is_nonzero",
    "masked_select",
    "_unique2",
    "bincount",
    "unique_dim",
)
OPERATORS = (
    "npu_fusion_attention",
    "npu_grouped_matmul",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
)


def _outside(names: tuple[str, ...], inside: list[int]) -> None:
    # The inside of a reference operator does not count, because the real operator is a kernel.
    import torch  # noqa: F401  # brings torch_npu, where it is virtual
    import torch_npu

    def hide(name: str) -> None:
        original = getattr(torch_npu, name)

        def hidden(*args: Any, **kwargs: Any) -> Any:
            inside.append(1)
            try:
                return original(*args, **kwargs)
            finally:
                inside.pop()

        setattr(torch_npu, name, hidden)

    for name in names:
        hide(name)


def _measured() -> dict[str, Any]:
    inside: list[int] = []
    _outside(OPERATORS, inside)
    import torch
    import transformers
    import verl  # noqa: F401  # verl-npu waits for this import
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[str] = Counter()
    experts: set[tuple[int, ...]] = set()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            on_npu = [a for a in args if isinstance(a, torch.Tensor) and a.device.type == "npu"]
            lists = [t for a in args if isinstance(a, list | tuple) for t in a if isinstance(t, torch.Tensor)]
            masked = name in ("index", "index_put_") and any(t.dtype is torch.bool for t in lists)
            result = func(*args, **(kwargs or {}))
            if inside:
                return result
            to_host = name == "_to_copy" and on_npu and result.device.type == "cpu"
            to_host = to_host or (name == "copy_" and args[0].device.type == "cpu" and len(on_npu) == 1)
            if on_npu and (name in WAITS or masked or to_host):
                counts["waits"] += 1
            if name in ("stack", "cat", "clone", "_to_copy", "copy_") and isinstance(result, torch.Tensor):
                sources = [tuple(t.shape) for t in (*on_npu, *lists)]
                counts["copies"] += sum(shape in experts or shape[::-1] in experts for shape in sources)
            return result

    def counted(model: Any, **inputs: Any) -> dict[str, int]:
        model(**inputs, use_cache=False)  # a first pass fills caches
        inputs = {name: value.clone() for name, value in inputs.items()}
        counts.clear()
        with Counting():
            model(**inputs, use_cache=False)
        return dict(counts)

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": LAYERS}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16}
    dense = transformers.Qwen3ForCausalLM._from_config(
        transformers.Qwen3Config(**sizes), attn_implementation="flash_attention_2"
    ).npu()
    ids = torch.randint(0, 64, (2, 12)).npu()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    packed = torch.cat([torch.arange(5), torch.arange(7)]).unsqueeze(0).npu()
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    sparse = transformers.Qwen3MoeForCausalLM._from_config(
        transformers.Qwen3MoeConfig(**sizes, **moe), attn_implementation="flash_attention_2"
    ).npu()
    experts.update({(40, 64), (64, 40)})
    # One row only, because upstream's own block at v0.6.1 returns the wrong rank for more rows.
    mixed = counted(sparse, input_ids=ids[:1], position_ids=packed)
    return {
        "waits_padded": counted(dense, input_ids=ids, attention_mask=mask).get("waits", 0),
        "waits_packed": counted(dense, input_ids=ids[:1], position_ids=packed).get("waits", 0),
        "waits_experts": mixed.get("waits", 0),
        # Each expert has three weights, each of which may be copied or not.
        "expert_copies_per_layer": mixed.get("copies", 0) / (8 * LAYERS),
    }


@contextmanager
def _single_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _padding() -> dict[str, float]:
    """Return our time divided by that of flash_attn's algorithm, best of many: unpad and pad, with backward."""
    import torch
    from torch import Tensor

    from verl_npu.features.attention.padding import pad_input, unpad_input

    class Take(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
            ctx.save_for_backward(indices)
            ctx.rows = x.shape[0]
            wide = indices.unsqueeze(-1).expand(-1, x[0].numel())
            return torch.gather(x.flatten(1), 0, wide).reshape(-1, *x.shape[1:])

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
            (indices,) = ctx.saved_tensors
            flat = gradient.flatten(1)
            made = torch.zeros(ctx.rows, flat.shape[1], dtype=flat.dtype)
            made.scatter_(0, indices.unsqueeze(-1).expand(-1, flat.shape[1]), flat)
            return made.reshape(ctx.rows, *gradient.shape[1:]), None

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, indices: Tensor, rows: int) -> Tensor:
            ctx.save_for_backward(indices)
            made = torch.zeros(rows, *x.shape[1:], dtype=x.dtype)
            made[indices] = x
            return made

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
            (indices,) = ctx.saved_tensors
            return gradient[indices], None, None

    def theirs(x: Tensor, mask: Tensor) -> Tensor:
        seqlens = mask.sum(dim=-1, dtype=torch.int32)
        indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
        seqlens.max().item()
        torch.nn.functional.pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
        tokens = Take.apply(x.flatten(0, 1), indices)
        return Put.apply(tokens, indices, mask.numel()).unflatten(0, tuple(mask.shape))

    def ours(x: Tensor, mask: Tensor) -> Tensor:
        tokens, indices, *_ = unpad_input(x, mask)
        return pad_input(tokens, indices, *mask.shape)

    mask = (torch.arange(1024).unsqueeze(0) < torch.tensor([1024, 700, 300, 50]).unsqueeze(1)).long()
    best = {"ours": float("inf"), "theirs": float("inf")}
    with _single_thread():
        calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ours": ours, "theirs": theirs}
        for _ in range(30):
            for name, call in calls.items():
                x = torch.randn(4, 1024, 256, requires_grad=True)
                began = time.perf_counter()
                call(x, mask).sum().backward()
                best[name] = min(best[name], time.perf_counter() - began)
    return {"padding_ratio": best["ours"] / best["theirs"]}


def main() -> None:
    """Measure before and after our patches, and print one line of JSON."""
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(_measured()))
        return
    found: dict[str, Any] = {"layers": LAYERS, **_padding()}
    for arm, switch in (("before", "attention,fused_ops"), ("after", "")):
        env = {**os.environ, "VIRTUAL_ASCEND": "1", "VERL_NPU_DISABLE": switch}
        result = subprocess.run(
            [sys.executable, __file__, "--measure"], env=env, check=True, stdout=subprocess.PIPE, text=True
        )
        found[arm] = json.loads(result.stdout.splitlines()[-1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
