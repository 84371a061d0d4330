"""Layers with the names and sizes of vLLM's layers on one rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class LinearBase(torch.nn.Module):
    def __init__(self, rows: int, columns: int, rank: int, ranks: int) -> None:
        super().__init__()
        self.tp_rank, self.tp_size = rank, ranks
        self.weight = torch.nn.Parameter(torch.zeros(rows, columns))


class ColumnParallelLinear(LinearBase):
    def __init__(self, inputs: int, outputs: int, rank: int, ranks: int) -> None:
        super().__init__(outputs // ranks, inputs, rank, ranks)
        self.output_size = outputs


class MergedColumnParallelLinear(ColumnParallelLinear):
    def __init__(self, inputs: int, outputs: list[int], rank: int, ranks: int) -> None:
        super().__init__(inputs, sum(outputs), rank, ranks)
        self.output_sizes = outputs


class QKVParallelLinear(ColumnParallelLinear):
    def __init__(self, inputs: int, heads: int, kv_heads: int, size: int, rank: int, ranks: int) -> None:
        self_heads, replicas = heads // ranks, max(1, ranks // kv_heads)
        self_kv = max(1, kv_heads // ranks)
        super().__init__(inputs, (self_heads + 2 * self_kv) * size * ranks, rank, ranks)
        self.total_num_heads, self.total_num_kv_heads, self.head_size = heads, kv_heads, size
        self.num_heads, self.num_kv_heads, self.num_kv_head_replicas = self_heads, self_kv, replicas


class RowParallelLinear(LinearBase):
    def __init__(self, inputs: int, outputs: int, rank: int, ranks: int) -> None:
        super().__init__(outputs, inputs // ranks, rank, ranks)
        self.output_size, self.input_size_per_partition = outputs, inputs // ranks
        self.bias = torch.nn.Parameter(torch.zeros(outputs))


class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, words: int, padded: int, columns: int, rank: int, ranks: int) -> None:
        super().__init__()
        size = padded // ranks
        self.org_vocab_size = words
        self.shard_indices = SimpleNamespace(
            padded_org_vocab_start_index=rank * size, padded_org_vocab_end_index=(rank + 1) * size
        )
        self.weight = torch.nn.Parameter(torch.zeros(size, columns))


class AscendUnquantizedFusedMoEMethod:
    """vllm-ascend's method, which transposes the experts."""


IMAGE_METHOD = type("AscendUnquantizedFusedMoEMethod", (), {})()
"""vllm-ascend's method at 1de16ead8e, of the same name, which leaves the experts as they were sent."""


class UnquantizedFusedMoEMethod:
    """vLLM's own method, which does not transpose the experts."""


class Fp8LinearMethod:
    """A method that has scales, too."""


class FusedMoE(torch.nn.Module):
    def __init__(self, experts: list[int], of: int, hidden: int, rows: int, method: Any, ranks: int = 1) -> None:
        """Create a layer with `experts` of `of` experts, each with `rows` rows on this rank."""
        super().__init__()
        self.tp_rank, self.tp_size, self.quant_method = 0, ranks, method
        w13, w2 = torch.zeros(len(experts), 2 * rows, hidden), torch.zeros(len(experts), hidden, rows)
        if isinstance(method, AscendUnquantizedFusedMoEMethod):
            w13, w2 = w13.transpose(1, 2).contiguous(), w2.transpose(1, 2).contiguous()
        self.w13_weight, self.w2_weight = torch.nn.Parameter(w13), torch.nn.Parameter(w2)
        self.expert_map = None
        if len(experts) < of:
            self.expert_map = torch.tensor([experts.index(each) if each in experts else -1 for each in range(of)])


class MLAAttention(torch.nn.Module):
    def __init__(self, heads: int, latent: int, keys: int, values: int, rank: int, ranks: int) -> None:
        super().__init__()
        self.kv_b_proj = ColumnParallelLinear(latent, heads * (keys + values), rank, ranks)
        self.impl = SimpleNamespace(
            kv_b_proj=self.kv_b_proj,
            qk_nope_head_dim=keys,
            v_head_dim=values,
            W_UV=torch.zeros(heads // ranks, latent, values),
            W_UK_T=torch.zeros(heads // ranks, keys, latent),
        )
