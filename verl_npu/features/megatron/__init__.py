"""Megatron on Ascend, through MindSpeed: each worker's overrides are checked and reach MindSpeed in time.

`overrides` judges what a user asks for, and imports neither MindSpeed nor Megatron. `settlement` gives it to
MindSpeed, and `snapshot` undoes what MindSpeed did if it fails. `patches` declares what is changed in verl and in
MindSpeed.
"""

from __future__ import annotations

# Each module adds its patches to the feature.
from .feature import megatron
from .patches import bridges, checkpoints, engines, heads, kernels, latent, mindspeed, routing, states, workers

__all__ = [
    "bridges",
    "checkpoints",
    "engines",
    "heads",
    "kernels",
    "latent",
    "megatron",
    "mindspeed",
    "routing",
    "states",
    "workers",
]
