"""Lengths of prompts and responses, and everything that is counted in tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["BUDGETS", "LENGTHS", "OVERLONG"]

_PROMPT, _RESPONSE, _SUPERVISED = "data.max_prompt_length", "data.max_response_length", "data.max_length"
_FEWEST = 32


def _lengths(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    new = {_PROMPT: scene.prompt, _RESPONSE: scene.response, _SUPERVISED: scene.prompt + scene.response}
    changed: dict[str, object] = {
        key: min(value, script.whole(key)) for key, value in new.items() if script.whole(key)
    }
    # Where the configuration does not follow data.*, the script set them one by one.
    for key, follows in (("prompt_length", _PROMPT), ("response_length", _RESPONSE)):
        path = f"actor_rollout_ref.rollout.{key}"
        if path in script and follows in changed and script.get(path) != script.get(follows):
            changed[path] = changed[follows]
    return changed


def _whole(settings: Settings) -> int:
    """Tokens of the longest sequence."""
    return (settings.whole(_PROMPT) + settings.whole(_RESPONSE)) or settings.whole(_SUPERVISED)


def _budgets(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    before, after = _whole(script), _whole(now)
    if not before or not after:
        return {}
    changed: dict[str, object] = {}
    for key in script.matching(r".*(max_token_len_per_gpu|max_token_len)"):
        budget = script.whole(key)
        if budget:
            # A micro batch holds at least one whole sequence, whose parts lie on the ranks of its sequence dimension.
            fewest = math.ceil(after / scene.layout.sequence)
            changed[key] = max(math.ceil(budget * after / before), fewest)
    for key in script.ending("max_model_len", "max_num_batched_tokens"):
        if script.whole(key):
            changed[key] = max(math.ceil(script.whole(key) * after / before), after)
    # vLLM wants at least a token of each sequence in a batch.
    for key in script.ending("max_num_seqs"):
        tokens = changed.get(key.replace("max_num_seqs", "max_num_batched_tokens"))
        if isinstance(tokens, int) and script.whole(key) > tokens:
            changed[key] = tokens
    for key in script.matching(
        r".*override_transformer_config\.(seq_length|max_position_embeddings)|.*mcore_kwargs\.seq_length"
    ):
        # With MindSpeed's latent attention it is the size of the mask, and flash attention takes one size only.
        if script.whole(key) and not script.truth(f"{key.rpartition('.')[0]}.multi_head_latent_attention"):
            changed[key] = after
    return changed


def _overlong(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    before, after = script.whole(_RESPONSE), now.whole(_RESPONSE)
    return {
        key: max(1, min(script.whole(key) * after // before, after - 1))
        for key in script.matching(r".*overlong_buffer(_cfg)?\.len")
        if script.whole(key) and before and after
    }


LENGTHS = Rule(
    "lengths", "Long sequences take hours on a CPU. Memory and speed at full length are not shown.", _lengths
)
BUDGETS = Rule(
    "token budgets",
    "They keep their proportion to the longest sequence, so that dynamic batches split as often as in the script.",
    _budgets,
)
OVERLONG = Rule("overlong buffer", "It must be shorter than the response, and keeps its proportion to it.", _overlong)
