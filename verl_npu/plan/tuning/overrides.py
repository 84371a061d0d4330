"""The settings that have one rank take two steps of fine-tuning with its part of the data, and read nothing."""

from __future__ import annotations

from pathlib import Path

from ...rehearse.settings import Settings, override
from ..share import Share
from .names import SEQUENCES, Names

__all__ = ["STEPS", "tuning_overrides"]

STEPS = 2
"""Batches to train on, and to validate with: the second step finds the optimizer's state."""


def tuning_overrides(names: Names, settings: Settings, share: Share, model: Path) -> list[str]:
    """Return them; `model` is the folder of a model without weights."""
    changes: dict[str, object] = {
        SEQUENCES: share.sequences * share.data,
        names.model: str(model),
        names.contents: ["model", "optimizer", "extra"],
        "trainer.device": "npu",
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": STEPS,
        # The last step is followed by both anyway.
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_hdfs_dir": None,
        "trainer.logger": ["console"],
    }
    changes |= share.budgets
    changes |= dict.fromkeys(settings.ending("use_torch_compile", "use_shm"), False)
    changes |= dict.fromkeys(settings.ending("tokenizer_path"), str(model))
    return [override(key, value) for key, value in changes.items()]
