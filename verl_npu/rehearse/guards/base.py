"""What guards look at, and what they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..settings import Settings
from ..trainer import Trainer

__all__ = ["Finding", "Script"]


@dataclass(frozen=True, slots=True)
class Script:
    """A captured script with its composed settings."""

    trainer: Trainer
    settings: Settings
    pin: str
    """The revision with a lock that its tree is nearest to."""
    text: str
    """The script itself; empty if only a command was given."""
    submitted: bool
    """It is handed to a Ray cluster with `ray job submit`: workers get the runtime environment's variables alone."""
    runtime: Mapping[str, str]
    """The variables of that runtime environment."""

    @property
    def npus(self) -> int:
        """All NPUs of the trainer; 0 if neither torchrun's words nor the settings say."""
        if self.trainer.ranks:
            return self.trainer.ranks * self.trainer.nodes if self.trainer.counted else 0
        return self.settings.whole("trainer.n_gpus_per_node") * self.settings.whole("trainer.nnodes", 1)

    @property
    def megatron(self) -> bool:
        """Whether the actor trains on Megatron."""
        return self.settings.text("actor_rollout_ref.actor.strategy") == "megatron"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be."""

    rule: str
    refused: bool
    """It is shown to fail; otherwise it is a warning."""
    subject: str
    found: str
    why: str
    """What happens, and where that is seen."""
    fix: str
