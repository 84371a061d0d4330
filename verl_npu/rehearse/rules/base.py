"""What a rule is, and what it knows besides the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..layout import Layout
from ..settings import Settings

__all__ = ["Rule", "Scene"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rehearsal has made, and how long it is to be."""

    folder: Path
    """Where the run writes."""
    model: Path
    train: Path
    test: Path
    checkpoint: Path | None
    """The small model's converted checkpoint; None if there is none."""
    reward: Path
    """A file with a reward function `grade` that a random model gets some of."""
    layout: Layout
    steps: int
    prompt: int
    """Tokens of the longest prompt."""
    response: int
    """Tokens of a response."""
    engine: str
    """The rollout engine that runs; empty: the script's own."""
    torchrun: bool
    awake: bool = False
    """The rollout engine is vLLM's build for CPUs: it has no sleep mode, and verl cannot split it over ranks."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a rehearsal scales."""

    name: str
    reason: str
    """Why the rehearsal cannot leave it as it is, and what that hides."""
    change: Callable[[Settings, Settings, Scene], Mapping[str, object]]
    """From the settings as the script has them, those that other rules have changed, and the scene, the new values."""
