"""Moving tokens to their experts and back: op-plugin, in docs/zh/custom_APIs/torch_npu
torch_npu-npu_moe_token_permute.md, torch_npu-npu_moe_token_unpermute.md and the same with _with_routing_map."""

from __future__ import annotations

import torch
from torch import Tensor

from .fused import Result, fused, is_fusible


def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort copies of the tokens by expert, stably; differentiable in tokens.

    Shapes: tokens [T,H], indices [T,K] or [T] (the experts of a token).

    Returns:
        (permuted [T*K,H], sorted_indices int32 [T*K]: where copy t*K+k went). A positive `num_out_tokens` keeps so
        many rows, a negative one drops so many.

    Raises:
        RuntimeError: wrong shapes or dtypes.
        NotImplementedError: padded_mode.
    """
    _refuse_padded("npu_moe_token_permute", padded_mode)
    if tokens.dim() != 2 or indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        raise RuntimeError(
            "npu_moe_token_permute: expected tokens [T,H] and indices [T,K] or [T], but got "
            f"{tuple(tokens.shape)} and {tuple(indices.shape)}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"npu_moe_token_permute: indices must be int32 or int64, but are {indices.dtype}")
    copies = 1 if indices.dim() == 1 else indices.shape[1]
    order = torch.argsort(indices.reshape(-1), stable=True)
    places = torch.argsort(order, stable=True).to(torch.int32)
    kept = order.numel()
    if num_out_tokens is not None and kept + num_out_tokens < 0:
        raise RuntimeError(f"npu_moe_token_permute: num_out_tokens {num_out_tokens} drops more than {kept} rows")
    if num_out_tokens:
        kept = min(num_out_tokens, kept) if num_out_tokens > 0 else kept + num_out_tokens
    return tokens.index_select(0, order[:kept] // copies), places


def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    """Add up a token's copies, weighted: `out[t] = sum_k probs[t,k] * permuted[sorted_indices[t*K+k]]`;
    differentiable.

    Shapes: permuted_tokens [M,H], sorted_indices [T*K], probs [T,K] -> [T,H]. Copies that were dropped count as zeros.

    Raises:
        RuntimeError: wrong shapes.
        NotImplementedError: padded_mode.
    """
    _refuse_padded("npu_moe_token_unpermute", padded_mode)
    copies = 1 if probs is None else probs.shape[1]
    fit = probs is None or probs.numel() == sorted_indices.numel()
    if permuted_tokens.dim() != 2 or sorted_indices.dim() != 1 or not fit:
        raise RuntimeError(
            f"npu_moe_token_unpermute: expected permuted_tokens [M,H] and sorted_indices [T*{copies}], "
            f"but got {tuple(permuted_tokens.shape)} and {tuple(sorted_indices.shape)}"
        )
    given = (permuted_tokens, sorted_indices, probs)
    if not is_fusible(given):
        return _added_up(*given)[0]
    rows = Result((sorted_indices.numel() // copies, permuted_tokens.shape[1]), permuted_tokens.dtype)
    return fused("npu_moe_token_unpermute", _added_up, (rows,), given, keep=slice(0))[0]


def _added_up(permuted: Tensor, sorted_indices: Tensor, probs: Tensor | None) -> tuple[Tensor]:
    places = sorted_indices.long()
    dropped = places >= permuted.shape[0]
    rows = permuted.index_select(0, places.masked_fill(dropped, 0)).masked_fill(dropped.unsqueeze(-1), 0)
    if probs is None:
        return (rows,)
    return ((rows.view(*probs.shape, -1) * probs.unsqueeze(-1)).sum(dim=1).to(permuted.dtype),)


def npu_moe_token_permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Copies of the tokens, expert by expert, in the tokens' order; differentiable in tokens and probs.

    Shapes: tokens [T,H], routing_map [T,E] (bool or int8), probs [T,E]. With `drop_and_pad` each expert gets
    `num_out_tokens / E` rows: its own first, then others.

    Returns:
        (permuted [M,H], the probs of its rows [M] or None, sorted_indices int32 [M]: the rows in the tokens' order,
        with drop_and_pad the tokens of the rows).

    Raises:
        RuntimeError: wrong shapes or dtypes, or drop_and_pad without a fitting num_out_tokens.
    """
    name = "npu_moe_token_permute_with_routing_map"
    if tokens.dim() != 2 or routing_map.dim() != 2 or routing_map.shape[0] != tokens.shape[0]:
        raise RuntimeError(
            f"{name}: expected tokens [T,H] and routing_map [T,E], but got {tuple(tokens.shape)} and "
            f"{tuple(routing_map.shape)}"
        )
    if routing_map.dtype not in (torch.bool, torch.int8):
        raise RuntimeError(f"{name}: routing_map must be bool or int8, but is {routing_map.dtype}")
    if probs is not None and probs.shape != routing_map.shape:
        raise RuntimeError(f"{name}: probs must be {tuple(routing_map.shape)}, but are {tuple(probs.shape)}")
    if num_out_tokens is not None and num_out_tokens < 0:
        raise RuntimeError(f"{name}: num_out_tokens must not be negative, but is {num_out_tokens}")
    count, experts = routing_map.shape
    by_expert = routing_map.bool().t()
    if drop_and_pad:
        if not num_out_tokens or num_out_tokens % experts or num_out_tokens // experts > count:
            raise RuntimeError(
                f"{name}: drop_and_pad takes a num_out_tokens that is at most {count} for each of {experts} experts, "
                f"but got {num_out_tokens}"
            )
        first = by_expert.to(torch.int8).sort(dim=-1, descending=True, stable=True)[1][:, : num_out_tokens // experts]
        rows = first.reshape(-1)
        expert = torch.arange(experts, device=tokens.device).repeat_interleave(first.shape[1])
        places = rows
    else:
        expert, rows = by_expert.nonzero(as_tuple=True)
        places = torch.argsort(rows, stable=True)
    taken = None if probs is None else probs[rows, expert]
    return tokens.index_select(0, rows), taken, places.to(torch.int32)


def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> Tensor:
    """Add up what `npu_moe_token_permute_with_routing_map` copied, weighted by probs; differentiable.

    Shapes: permuted_tokens [M,H], sorted_indices [M], probs and routing_map [T,E], restore_shape (T,H) -> [T,H].
    Without drop_and_pad, every token must have as many experts as the others.

    Raises:
        RuntimeError: shapes that do not go together, probs without the routing map.
    """
    name = "npu_moe_token_unpermute_with_routing_map"
    count = int(restore_shape[0])
    places = sorted_indices.long()
    if drop_and_pad:
        rows = permuted_tokens
        if probs is not None:
            expert = torch.arange(probs.shape[1], device=places.device).repeat_interleave(
                len(places) // probs.shape[1]
            )
            rows = rows * probs[places, expert].unsqueeze(-1)
        zeros = torch.zeros(tuple(restore_shape), dtype=rows.dtype, device=rows.device)
        return zeros.index_add(0, places, rows).to(permuted_tokens.dtype)
    if permuted_tokens.shape[0] % count:
        raise RuntimeError(f"{name}: {permuted_tokens.shape[0]} rows are not the same number for {count} tokens")
    rows = permuted_tokens.index_select(0, places).view(count, -1, permuted_tokens.shape[-1])
    if probs is not None:
        if routing_map is None:
            raise RuntimeError(f"{name}: probs need the routing_map")
        rows = rows * probs[routing_map.bool()].view(count, -1, 1)
    return rows.sum(dim=1).to(permuted_tokens.dtype)


def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """`npu_moe_token_unpermute_with_routing_map`, with what its gradient needs if it drops and pads.

    Returns:
        ([T,H], out_index int32 [M] and permuted_token_id int32 [M]: the rows in the tokens' order and their tokens,
        the probs of the rows [M] or None).

    Raises:
        RuntimeError: as npu_moe_token_unpermute_with_routing_map.
    """
    back = npu_moe_token_unpermute_with_routing_map(
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs=probs,
        routing_map=routing_map,
        drop_and_pad=drop_and_pad,
    )
    expert, token = _expert_and_token(sorted_indices, routing_map, probs, drop_and_pad, int(restore_shape[0]))
    taken = None if probs is None or expert is None else probs[token, expert]
    token_id, out_index = (
        sorted_indices.sort(stable=True) if drop_and_pad else (token.sort(stable=True)[0], sorted_indices)
    )
    return back, out_index.to(torch.int32), token_id.to(torch.int32), taken


def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `npu_moe_token_permute_with_routing_map`: op-plugin,
    MoeTokenPermuteWithRoutingMapGradOpApi.cpp.

    Shapes: permuted_token_out_grad [M,H], probs_grad [M] or None, sorted_indices [M], routing_map [T,E].

    Returns:
        (that of the tokens [T,H], that of the probs [T,E] or None).

    Raises:
        RuntimeError: experts_num and tokens_num are not the routing map's.
    """
    if tuple(routing_map.shape) != (tokens_num, experts_num):
        raise RuntimeError(
            f"npu_moe_token_permute_with_routing_map_grad: expected routing_map [{tokens_num},{experts_num}], but got "
            f"{tuple(routing_map.shape)}"
        )
    expert, token = _expert_and_token(sorted_indices, routing_map, None, drop_and_pad, tokens_num)
    zeros = permuted_token_out_grad.new_zeros(tokens_num, permuted_token_out_grad.shape[1])
    of_tokens = zeros.index_add(0, token, permuted_token_out_grad)
    if probs_grad is None or expert is None:
        return of_tokens, None
    return of_tokens, probs_grad.new_zeros(tokens_num, experts_num).index_put((token, expert), probs_grad)


def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `npu_moe_token_unpermute_with_routing_map`: op-plugin,
    MoeTokenUnpermuteWithRoutingMapGradKernelNpuOpApi.cpp.

    Shapes: unpermuted_tokens_grad [T,H], out_index [M] (the rows in the tokens' order), permuted_token_id [M] (their
    tokens; read with drop_and_pad only), routing_map and probs [T,E], permuted_tokens [M,H].

    Returns:
        (that of the permuted tokens [M,H], that of the probs [T,E] or None).

    Raises:
        RuntimeError: probs without the permuted tokens or the routing map.
    """
    name = "npu_moe_token_unpermute_with_routing_map_grad"
    rows = out_index.long()
    if drop_and_pad:
        rows = torch.empty_like(rows).index_copy(0, rows, permuted_token_id.long())
    expert, token = _expert_and_token(rows, routing_map, probs, drop_and_pad, int(restore_shape[0]))
    of_rows = unpermuted_tokens_grad.index_select(0, token)
    if probs is None:
        return of_rows, None
    if permuted_tokens is None or expert is None:
        raise RuntimeError(f"{name}: probs need permuted_tokens and routing_map")
    along = (of_rows * permuted_tokens).sum(-1).to(unpermuted_tokens_grad.dtype)
    of_probs = along.new_zeros(probs.shape).index_put((token, expert), along)
    return (of_rows * probs[token, expert].unsqueeze(-1)).to(unpermuted_tokens_grad.dtype), of_probs


def _expert_and_token(
    sorted_indices: Tensor, routing_map: Tensor | None, probs: Tensor | None, drop_and_pad: bool, count: int
) -> tuple[Tensor | None, Tensor]:
    """Return each permuted row's expert, None if nothing tells it, and its token, one of `count`."""
    places = sorted_indices.long()
    if drop_and_pad:
        shape = routing_map if routing_map is not None else probs
        if shape is None:
            return None, places
        experts = torch.arange(shape.shape[1], device=places.device)
        return experts.repeat_interleave(len(places) // shape.shape[1]), places
    if routing_map is not None:
        expert, token = routing_map.bool().t().nonzero(as_tuple=True)
        return expert, token
    # The rows in the tokens' order: as many for each token.
    return None, torch.argsort(places) // (len(places) // count)


def _refuse_padded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise NotImplementedError(f"{name}: padded_mode is not implemented by the virtual Ascend")
