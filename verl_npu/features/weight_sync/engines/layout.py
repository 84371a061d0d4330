"""The layout of an engine's tensors: which part of each sent weight a rank holds, and how to undo changes to the
layout.

We compute the parts from the sizes of the layers, and do not ask the loaders of the layers. Source: vLLM 0.9.1 to
0.23.0, `model_executor/layers/linear.py` and `vocab_parallel_embedding.py`. We recognize a layer by the names of its
class and base classes. So we import neither vLLM nor vllm-ascend, whose classes derive from vLLM's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a weight that is split along a dimension. Each part has the length `size`, except that the
    last parts can be shorter."""

    dim: int
    size: int
    index: int

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the part of a weight that this share describes."""
        return self._part(weight, self.index)

    def others(self, weight: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return the parts of a weight that other ranks hold, as a mapping from part indices to parts."""
        count = -(-weight.shape[self.dim] // self.size)
        return {index: self._part(weight, index) for index in range(count) if index != self.index}

    def _part(self, weight: torch.Tensor, index: int) -> torch.Tensor:
        length = weight.shape[self.dim]
        begin = min(index * self.size, length)
        return weight.narrow(self.dim, begin, min(self.size, length - begin))


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of a weight that belong together, such as the queries in a fused projection."""

    rows: int
    """The number of rows in the whole weight, before it is sharded."""
    share: Share | None
    """The part that this rank holds. None if it holds all rows."""
    padded: bool = False
    """Whether the engine holds padding rows after the section. A sync never sends these rows."""


def kinds_of(thing: object) -> set[str]:
    """Return the names of an object's class and of its base classes."""
    return {kind.__name__ for kind in type(thing).__mro__}


def sections_of(layer: Any, leaf: str) -> tuple[Section, ...] | None:
    """Return the sections of a layer's `weight` or `bias`, in order, or None if the layer is not a parallel layer.

    For a replicated layer with several outputs, also return its sections, although they are not sharded.
    """
    kinds = kinds_of(layer)
    if "VocabParallelEmbedding" in kinds:
        return (_vocabulary(layer),)
    if "QKVParallelLinear" in kinds:
        return _projections(layer)
    if "RowParallelLinear" in kinds:
        share = Share(1, layer.input_size_per_partition, rank_of(layer)) if leaf == "weight" else None
        return (Section(layer.output_size, share),)
    if "ColumnParallelLinear" in kinds:
        outputs = getattr(layer, "output_sizes", None) or [layer.output_size]
        return tuple(Section(size, Share(0, size // layer.tp_size, rank_of(layer))) for size in outputs)
    if "ReplicatedLinear" in kinds and hasattr(layer, "output_sizes"):
        return tuple(Section(size, None) for size in layer.output_sizes)
    return None


def _vocabulary(layer: Any) -> Section:
    indices = layer.shard_indices
    begin, end = indices.padded_org_vocab_start_index, indices.padded_org_vocab_end_index
    return Section(layer.org_vocab_size, Share(0, end - begin, begin // (end - begin)), padded=True)


def _projections(layer: Any) -> tuple[Section, ...]:
    rank = rank_of(layer)
    queries, keys, size = layer.num_heads, layer.num_kv_heads, layer.head_size
    values = getattr(layer, "v_head_size", size)
    # With fewer key heads than ranks, several ranks hold the same head.
    key_rank = rank // layer.num_kv_head_replicas
    return (
        Section(layer.total_num_heads * size, Share(0, queries * size, rank)),
        Section(layer.total_num_kv_heads * size, Share(0, keys * size, key_rank)),
        Section(layer.total_num_kv_heads * values, Share(0, keys * values, key_rank)),
    )


def rank_of(layer: Any) -> int:
    """Return the rank of this process in the group of ranks that shards a layer."""
    rank = getattr(layer, "tp_rank", None)
    if rank is None:
        # Before 0.11, vLLM's linear layers call this function in their loaders.
        rank = sys.modules["vllm.distributed"].get_tensor_model_parallel_rank()
    return int(rank)


UNQUANTIZED = "AscendUnquantizedFusedMoEMethod"
"""vllm-ascend's class for unquantized experts. It stores their weights as (experts, inputs, outputs)."""


# vLLM's fused weights for a layer's experts: the names of one expert's projections in checkpoints, and the name in
# checkpoints that also have them fused.
_EXPERTS = {
    "w13_weight": ((("gate_proj", "up_proj"), ("w1", "w3")), "gate_up_proj"),
    "w2_weight": ((("down_proj",), ("w2",)), "down_proj"),
}


# MLA's copies of kv_b_proj, for values and for keys: attention/mla_v1.py and sfa_v1.py of vllm-ascend, and
# attention.py of its engine V0. Their shapes are (heads, latent rank, values) and (heads, keys, latent rank).
_COPIES = (("W_UV", "W_UK_T"), ("kv_b_proj_w_v", "kv_b_proj_w_k"), ("w_vc", "w_kc"))


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout in which the engine holds a tensor for its computations."""

    name: str
    """The engine's name for the tensor."""
    sources: tuple[tuple[str, ...], ...]
    """The names under which the tensor may be sent. Each alternative is one name for the whole tensor, or one name for
    each section."""
    read: Callable[[], torch.Tensor]
    """Returns the engine's current tensor."""
    sections: tuple[Section, ...] | None = None
    """The sections of the tensor. None if the rank holds the tensor as it is sent, or in an unknown layout."""
    undone: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Converts the tensor to the layout of a checkpoint: (outputs, inputs), with experts stacked along the rows."""
    chosen: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Takes a sent share, and selects the part that this tensor copies."""
    unfused: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Takes a sent tensor with a dimension for experts, selects this rank's experts, and stacks them along the
    rows."""

    opaque: str = ""
    """The reason why the tensor cannot be compared. Empty if the tensor can be compared."""
    elsewhere: frozenset[str] = frozenset()
    """The names under which other ranks' experts of this layer are sent."""

    def held(self) -> torch.Tensor:
        """Return the engine's current tensor on the host, in the layout of a checkpoint."""
        tensor = self.read().detach()
        return (tensor if self.undone is None else self.undone(tensor)).cpu()


def layouts_of(model: torch.nn.Module) -> list[Layout]:
    """Return a layout for each parameter, and for each copy that the engine makes of a parameter."""
    packed = getattr(model, "packed_modules_mapping", {})
    modules: dict[int, _Placed] = {}
    names: dict[int, list[str]] = {}
    for path, module in _walk(model, "", ()):
        modules.setdefault(id(module), _Placed(module, [])).paths.append(path)
        for leaf, parameter in _own_parameters(module):
            names.setdefault(id(parameter), []).append(_join(path, leaf))
    found: list[Layout] = []
    for module, paths in modules.values():
        for leaf, parameter in _own_parameters(module):
            if leaf in _copy_names(getattr(module, "impl", None)):
                # From 0.26 on, vLLM's layer has its own copy, but vllm-ascend multiplies with the copy in `impl`.
                continue
            if leaf in _EXPERTS and parameter.dim() == 3:
                found.append(_experts(paths, module, leaf, *_EXPERTS[leaf]))
            else:
                found.append(_plain(_join(paths[0], leaf), module, leaf, names[id(parameter)], packed))
    return [*found, *_copies(modules)]


class _Placed(NamedTuple):
    module: Any
    paths: list[str]
    """All paths to the module. There may be several, because experts also hold the shared experts."""


def _walk(module: Any, path: str, above: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    yield path, module
    for name, child in module.named_children():
        if not any(child is each for each in above):
            yield from _walk(child, _join(path, name), (*above, module))


def _own_parameters(module: Any) -> Iterable[tuple[str, torch.Tensor]]:
    return module.named_parameters(recurse=False)  # type: ignore[no-any-return]


def _join(prefix: str, leaf: str) -> str:
    return f"{prefix}.{leaf}" if prefix else leaf


def _plain(name: str, module: object, leaf: str, names: Sequence[str], packed: Any) -> Layout:
    wholes = dict.fromkeys(_without_base(each) for each in names)
    sources: list[tuple[str, ...]] = [(whole,) for whole in wholes]
    for whole in wholes:
        for fused, parts in packed.items():
            if f".{fused}." in f".{whole}":
                sources.append(tuple(f".{whole}".replace(f".{fused}.", f".{part}.")[1:] for part in parts))
    read = _reader(module, leaf)
    return Layout(name, tuple(sources), read, sections_of(module, leaf), opaque=_quantization(module))


def _quantization(layer: object) -> str:
    """Return the reason why a quantized layer cannot be compared, or an empty string if the layer is not quantized."""
    method = getattr(layer, "quant_method", None)
    known = method is None or any("Unquantized" in kind for kind in kinds_of(method))
    return "" if known else f"it is quantized by {type(method).__name__}"


def _without_base(name: str) -> str:
    # vLLM wraps a layer that has an adapter.
    return name.replace(".base_layer.", ".")


def _experts(paths: Sequence[str], layer: Any, leaf: str, projections: Sequence[Sequence[str]], fused: str) -> Layout:
    # vllm-ascend 1de16ead8e, in the published image, keeps both as they are sent; its releases transpose both.
    as_sent = layer.w13_weight.shape[1] == 2 * layer.w2_weight.shape[2]
    transposed = UNQUANTIZED in kinds_of(getattr(layer, "quant_method", None)) and not as_sent
    experts, others = _expert_numbers(layer, getattr(layer, leaf).shape[0])
    # From 0.25 on, vLLM keeps the sizes in the layer's configuration, and the layer inside another one.
    sizes = layer if hasattr(layer, "tp_size") else getattr(layer, "moe_config", None)
    ranks = int(getattr(sizes, "tp_size", 1))
    rank = rank_of(sizes) if ranks > 1 else 0
    paths = [path.removesuffix(".routed_experts") for path in paths]
    of_one = len(projections[0])

    def undone(weight: torch.Tensor) -> torch.Tensor:
        return (weight.transpose(1, 2) if transposed else weight).flatten(0, 1)

    shape = getattr(layer, leaf).shape
    rows, columns = (shape[2], shape[1]) if transposed else (shape[1], shape[2])
    if of_one == 2:
        section = Section(rows // 2 * ranks, Share(0, rows // 2, rank))
    else:
        section = Section(rows, Share(1, columns, rank))
    whole_rows = section.rows * of_one

    def unfused(sent: torch.Tensor) -> torch.Tensor:
        # transformers 5 changed the order to (experts, outputs, inputs).
        oriented = sent if sent.shape[1] == whole_rows else sent.transpose(1, 2)
        return oriented[experts].flatten(0, 1)

    def names(numbers: Sequence[int]) -> list[tuple[str, ...]]:
        return [
            tuple(_join(path, f"{number}.{projection}.weight") for number in numbers for projection in of_kind)
            for path in paths
            for of_kind in projections
        ]

    return Layout(
        _join(paths[0], leaf),
        (*names(experts), *((_join(path, fused),) for path in paths)),
        _reader(layer, leaf),
        (section,) * (len(experts) * of_one),
        undone=undone,
        unfused=unfused,
        opaque=_quantization(layer),
        elsewhere=frozenset(name for of_kind in names(others) for name in of_kind),
    )


def _expert_numbers(layer: Any, count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of this rank's experts, in the order of its weights, and the numbers of other ranks'
    experts."""
    places = getattr(layer, "expert_map", None)
    if places is None:
        return list(range(count)), []
    numbered = list(enumerate(int(place) for place in places.tolist()))
    held = {place: number for number, place in numbered if place >= 0}
    return [held[place] for place in sorted(held)], [number for number, place in numbered if place < 0]


def _copies(modules: Mapping[int, _Placed]) -> Iterator[Layout]:
    for module, paths in modules.values():
        impl = getattr(module, "impl", None)
        source = getattr(impl, "kv_b_proj", None)
        pair = _copy_names(impl)
        if not pair or id(source) not in modules:
            continue
        sent = tuple((_without_base(_join(path, "weight")),) for path in modules[id(source)].paths)
        for name, of_values in zip(pair, (True, False), strict=True):
            yield Layout(
                _join(paths[0], f"impl.{name}"),
                sent,
                _reader(impl, name),
                sections_of(source, "weight"),
                undone=_transposed if of_values else None,
                chosen=_rows_of_heads(impl, of_values),
            )


def _copy_names(impl: object) -> tuple[str, ...]:
    """Return the names of the copies of kv_b_proj that `impl` holds, or an empty tuple if it holds no copies."""
    return next((pair for pair in _COPIES if all(hasattr(impl, name) for name in pair)), ())


def _reader(owner: object, name: str) -> Callable[[], torch.Tensor]:
    return lambda: getattr(owner, name)


def _transposed(copy: torch.Tensor) -> torch.Tensor:
    return copy.transpose(1, 2)


def _rows_of_heads(impl: Any, of_values: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    keys, values = impl.qk_nope_head_dim, impl.v_head_dim

    def chosen(share: torch.Tensor) -> torch.Tensor:
        heads = share.view(-1, keys + values, share.shape[-1])
        return heads[:, keys:] if of_values else heads[:, :keys]

    return chosen
