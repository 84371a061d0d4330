"""Records the parts of verl's Megatron engine with MindSpeed under transformers' names, on each rank.

Ranks of a tensor-parallel group hold parts of a value's features, or with sequence parallelism of its rows. Values are
gathered when they are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .recording import HEAD, SHARDED, Place, Recorder

_WATCHED: Mapping[str, tuple[str, str]] = {
    "embedding": ("", "embed_tokens:out"),
    "input_layernorm": (
        "input_layernorm:in",
        "input_layernorm:out self_attn:in self_attn.q_proj:in self_attn.k_proj:in self_attn.v_proj:in",
    ),
    "self_attention.linear_qkv": ("", "self_attn.q_proj:out self_attn.k_proj:out self_attn.v_proj:out"),
    "self_attention.q_layernorm": ("self_attn.q_norm:in", "self_attn.q_norm:out"),
    "self_attention.k_layernorm": ("self_attn.k_norm:in", "self_attn.k_norm:out"),
    "self_attention.core_attention": ("self_attn.query self_attn.key self_attn.value", "self_attn.attention"),
    "self_attention.linear_proj": ("self_attn.o_proj:in", "self_attn.o_proj:out"),
    "self_attention": ("", "self_attn:out"),
    "pre_mlp_layernorm": (
        "post_attention_layernorm:in",
        "post_attention_layernorm:out mlp:in mlp.gate_proj:in mlp.up_proj:in mlp.gate:in",
    ),
    "mlp.router.gating": ("", "mlp.gate:out"),
    "mlp.linear_fc1": ("", "mlp.gate_proj:out mlp.up_proj:out"),
    "mlp.linear_fc2": ("mlp.down_proj:in", "mlp.down_proj:out"),
    "mlp": ("", "mlp:out"),
    "final_layernorm": ("norm:in", "norm:out"),
    "output_layer": ("lm_head:in", "lm_head:out"),
}
"""The names of the first inputs and of the output of Megatron's modules and methods. An output with several names is
all of them, or `_sections` takes it apart."""
_METHODS = {
    "self_attention.linear_qkv": ("_rmsnorm", "input_layernorm"),
    "mlp.linear_fc1": ("_rmsnorm", "pre_mlp_layernorm"),
    "mlp.router": ("gating", "mlp.router.gating"),
}
"""Methods whose result is no module's output: MindSpeed's projections contain the norm before them."""
_PATH = re.compile(r"(?:decoder\.)?(?:layers\.(\d+)\.)?(.*)")


def padded(lengths: Mapping[int, int], size: int, packed: bool) -> list[Place | None]:
    """Return the place (sequence and position) of each row that the engine computes for these sequences.

    Each sequence is padded to a multiple of the tensor-parallel size. Without packing, all sequences are padded to the
    longest sequence, and the rows are ordered by position: the first tokens of all sequences, then the second tokens,
    and so on.
    """
    sizes = {row: -(-length // size) * size for row, length in lengths.items()}
    places = [(row, at) for row, rows in sizes.items() for at in range(rows)]
    if not packed:
        places = [(row, at) for at in range(max(sizes.values())) for row in lengths]
    return [(row, at) if at < lengths[row] else None for row, at in places]


@contextmanager
def recorded(engine: Any, recorder: Recorder, places: Sequence[Place | None]) -> Iterator[None]:
    """Record what the engine computes for the rows that `places` selects. The first rank of a tensor-parallel group
    receives the complete values."""
    from megatron.core import parallel_state
    from verl.utils.megatron_utils import unwrap_model

    group, config = parallel_state.get_tensor_model_parallel_group(), engine.tf_config
    size, sections = dist.get_world_size(group), _sections(engine, dist.get_world_size(group))

    def whole(value: torch.Tensor, name: str) -> torch.Tensor:
        features = SHARDED.fullmatch(name) or name == f"{HEAD}:out"
        if size == 1 or not (features or config.sequence_parallel):
            return value.reshape(len(places), -1)
        value = value.reshape(len(places) // (1 if features else size), -1).contiguous()
        parts = [torch.empty_like(value) for _ in range(size)]
        dist.all_gather(parts, value, group)
        return torch.cat(parts, dim=1 if features else 0)

    def add(prefix: str, names: Iterable[str], values: Iterable[torch.Tensor]) -> None:
        for name, value in zip(names, values, strict=False):
            if dist.get_rank(group) == 0:
                recorder.add(prefix + name, value)

    def watch(prefix: str, key: str, module: Any) -> None:
        def before(module: object, args: tuple[Any, ...]) -> None:
            names = _WATCHED[key][0].split()
            add(prefix, names, (whole(each, name) for each, name in zip(args, names, strict=False)))

        def after(key: str, made: Any) -> Any:
            names = _WATCHED[key][1].split()
            value = whole(made[0] if isinstance(made, tuple) else made, names[0])
            add(prefix, names, sections[key](value) if key in sections else [value] * len(names))
            return made

        if key in _WATCHED:
            stack.callback(module.register_forward_pre_hook(before).remove)
            if type(module).__name__ != "IdentityOp":
                stack.callback(module.register_forward_hook(lambda own, args, made: after(key, made)).remove)
        method, named = _METHODS.get(key, ("", ""))
        original = getattr(module, method, None)
        if original is not None:
            setattr(module, method, lambda *args: after(named, original(*args)))
            stack.callback(delattr, module, method)

    recorder.begin(places)
    with ExitStack() as stack:
        for model in unwrap_model(engine.module):
            for path, module in model.named_modules():
                number, key = _PATH.fullmatch(path).groups()  # type: ignore[union-attr]
                layer = "" if number is None else f"layers.{model.decoder.layers[int(number)].layer_number - 1}."
                watch(layer, key, module)
        yield


def _sections(engine: Any, size: int) -> Mapping[str, Callable[[torch.Tensor], Iterable[torch.Tensor]]]:
    """Return functions that take the outputs of fused projections apart."""
    config, vocabulary = engine.tf_config, engine.model_config.hf_config.vocab_size
    # A group of queries is followed by its key and its value.
    heads = config.num_attention_heads // config.num_query_groups
    queries = (config.num_query_groups, heads + 2, config.kv_channels)
    return {
        "self_attention.linear_qkv": lambda whole: (
            each.flatten(1) for each in whole.unflatten(-1, queries).split((heads, 1, 1), dim=2)
        ),
        "mlp.linear_fc1": lambda whole: (each.flatten(1) for each in whole.unflatten(-1, (size, 2, -1)).unbind(2)),
        "output_layer": lambda whole: (whole[:, :vocabulary],),
    }
