"""The picture that each prompt of an image-text model has in a plan."""

from __future__ import annotations

from dataclasses import replace

from ..errors import PlanError
from .job import Picture
from .model import Model
from .share import Share

__all__ = ["check_text_only", "picture_of"]


def picture_of(model: Model, tokens: int, share: Share) -> tuple[Picture | None, list[str]]:
    """Return the picture of each prompt, which has so many tokens, and what the user is told of it.

    Raises:
        PlanError: the model takes no pictures, or a prompt has no room for it.
    """
    if tokens and model.picture is None:
        raise PlanError(
            subject="--picture-tokens",
            expected="an image-text model of Qwen's",
            found=model.source,
            fix="leave it out",
        )
    shortest = min((prompt for prompt, _ in (*share.lengths, *share.scored_lengths)), default=share.prompt)
    if tokens >= shortest:
        raise PlanError(
            subject="--picture-tokens",
            expected=f"less than the {shortest} tokens of a prompt",
            found=str(tokens),
            fix="give longer prompts, or a smaller picture",
        )
    if model.picture is None:
        return None, []
    notes = [] if tokens else ["prompts have no pictures in this plan: --picture-tokens gives each one"]
    return replace(model.picture, tokens=tokens), notes


def check_text_only(model: Model, tokens: int) -> None:
    """Refuse what fine-tuning is not planned with.

    Raises:
        PlanError: the model takes pictures, or there are to be some.
    """
    if tokens or model.picture is not None:
        raise PlanError(
            subject="--picture-tokens" if tokens else f"the model {model.source}",
            expected="text alone: fine-tuning with pictures is not planned yet",
            found=f"{tokens} tokens" if tokens else "an image-text model",
            fix="leave it out" if tokens else "plan the language model",
        )
