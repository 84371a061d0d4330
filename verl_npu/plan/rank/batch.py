"""The share of a step's data that one rank gets: sequences without content, of the lengths that are asked for."""

from __future__ import annotations

import math
from typing import Any

from ..job import Job, Picture

__all__ = ["TOKEN", "batch"]

TOKEN = 5
"""Any token but the first few, which stand for padding and ends."""


def batch(job: Job, training: bool) -> dict[str, Any]:
    """Return what verl's trainer hands to the phases of a step that train, or to those that do not, on the host.

    `input_ids`, `attention_mask`, `position_ids` [sequences, prompt + response]; `prompts` [sequences, prompt]; all
    else [sequences, response]. Prompts are padded on the left, answers on the right. Source:
    verl/trainer/ppo/ray_trainer.py, `fit`. With pictures, which stand before the answer, positions are
    [sequences, 4, prompt + response], and `multi_modal_inputs` has the patches of each sequence.
    """
    import torch

    prompt, response = job.prompt, job.response
    measured, sequences = (job.lengths, job.sequences) if training else (job.scored_lengths, job.scored)
    lengths = torch.tensor(measured or [(prompt, response)] * sequences)
    if job.picture is not None and bool((lengths == lengths[0]).all()):
        # torch takes rows of positions for their tokens if all sequences have one length, which no real batch has.
        lengths[-1, 1] -= 1
    place = torch.arange(prompt + response)
    mask = (place >= prompt - lengths[:, :1]) & (place < prompt + lengths[:, 1:])
    ids = mask.long() * TOKEN
    each = torch.zeros(len(lengths), response)
    # As verl.utils.model.compute_position_id_with_mask has them.
    positions = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)
    pictures = {}
    if job.picture is not None:
        positions = positions.unsqueeze(1).repeat(1, job.picture.positions, 1)
    if job.picture is not None and job.picture.tokens:
        ids[:, prompt - job.picture.tokens : prompt] = job.picture.token
        pictures["multi_modal_inputs"] = _pictures(job.picture, len(lengths))
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "position_ids": positions,
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
        **pictures,
    }


def _pictures(picture: Picture, sequences: int) -> Any:
    """One for each sequence: `pixel_values` [patches, numbers of a patch] and `image_grid_thw` [1, 3]."""
    import numpy
    import torch

    high = math.isqrt(picture.patches)
    found = numpy.empty(sequences, dtype=object)
    for place in range(sequences):
        found[place] = {
            "pixel_values": torch.zeros(picture.tokens * picture.patches, picture.width),
            "image_grid_thw": torch.tensor([[1, high, high * picture.tokens]]),
        }
    return found
