"""The share of a step's data that one rank gets: sequences without content, of the lengths that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..job import Job

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["batch"]

_TOKEN = 5
"""Any token but the first few, which stand for padding and ends."""


def batch(job: Job) -> dict[str, Tensor]:
    """Return what verl's trainer hands to the phases of a step, on the host.

    `input_ids`, `attention_mask`, `position_ids` [sequences, prompt + response]; `prompts` [sequences, prompt]; all
    else [sequences, response]. Prompts are padded on the left, answers on the right. Source:
    verl/trainer/ppo/ray_trainer.py, `fit`.
    """
    import torch

    prompt, response = job.prompt, job.response
    lengths = torch.tensor(job.lengths or [(prompt, response)] * job.sequences)
    place = torch.arange(prompt + response)
    mask = (place >= prompt - lengths[:, :1]) & (place < prompt + lengths[:, 1:])
    ids = mask.long() * _TOKEN
    each = torch.zeros(len(lengths), response)
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        # As verl.utils.model.compute_position_id_with_mask has them.
        "position_ids": (mask.long().cumsum(dim=-1) - 1).clamp(min=0),
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "response_mask": mask[:, prompt:].long(),
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
