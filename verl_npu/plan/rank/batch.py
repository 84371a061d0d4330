"""The share of a step's data that one rank gets: sequences of the greatest length, without content."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["batch"]

_TOKEN = 5
"""Any token but the first few, which stand for padding and ends."""


def batch(sequences: int, prompt: int, response: int) -> dict[str, Tensor]:
    """Return what verl's trainer hands to the phases of a step, on the host.

    `input_ids`, `attention_mask`, `position_ids` [sequences, prompt + response]; `prompts` [sequences, prompt]; all
    else [sequences, response]. Source: verl/trainer/ppo/ray_trainer.py, `fit`.
    """
    import torch

    length = prompt + response
    ids = torch.full((sequences, length), _TOKEN, dtype=torch.long)
    each = torch.zeros(sequences, response)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(length).expand(sequences, -1).contiguous(),
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "response_mask": torch.ones(sequences, response, dtype=torch.long),
        **{
            name: each.clone()
            for name in (
                "old_log_probs",
                "rollout_log_probs",
                "ref_log_prob",
                "values",
                "advantages",
                "returns",
                "token_level_scores",
                "token_level_rewards",
            )
        },
    }
