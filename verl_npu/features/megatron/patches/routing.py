"""Counting the layers of mixture of experts, which upstream does in every step of a Megatron actor."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....registry.source.probe import Defines, Mentions
from ..feature import megatron

__all__: list[str] = []

_COUNT = "verl.utils.megatron.router_replay_utils:get_moe_num_layers_to_build"


@megatron.wrap(
    _COUNT,
    why="The first log-probabilities of a Megatron actor end with TypeError: get_transformer_layer_offset() got an "
    "unexpected keyword argument 'vp_stage', dense models included: Megatron 0.12.1, which the guide for Ascend "
    "names, has no such argument.",
    how="If Megatron's function lacks an argument, it is called without it, as later revisions of verl do.",
    link="https://github.com/verl-project/verl/pull/5580",
    retired_by=Mentions(_COUNT, "signature"),
    requires=Defines(_COUNT),
)
def ask_megatron_only_for_the_offset_that_it_knows(
    original: Callable[..., int], config: Any, vp_stage: int | None = None, pp_rank: int | None = None
) -> int:
    """Return the number of layers of mixture of experts on one stage of the pipeline."""
    from verl.utils.megatron import router_replay_utils as replay

    known = inspect.signature(replay.get_transformer_layer_offset).parameters
    if "vp_stage" in known:
        return original(config, vp_stage=vp_stage, pp_rank=pp_rank)
    first: int = replay.get_transformer_layer_offset(config, **({"pp_rank": pp_rank} if "pp_rank" in known else {}))
    layers: int = replay.get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank)
    return sum(1 for index in range(first, first + layers) if replay.is_moe_layer(config, index))
