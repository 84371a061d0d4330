"""Turns prompts of text, images, and videos into a model's inputs with the model's own processor, like vLLM."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch

from verl_npu.errors import RolloutError


class Processor(Protocol):
    """The subset of a model's processor that this module uses."""

    tokenizer: Callable[..., dict[str, list[int]]]

    def __call__(self, **asked: object) -> Mapping[str, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to generate a response to."""

    tokens: list[int]
    """The tokens. Each image or video has either one placeholder, or as many as the processor makes."""
    images: Sequence[object] = ()
    videos: Sequence[object] = ()
    """Arrays of frames, or tuples of an array and its metadata."""
    settings: dict[str, object] = field(default_factory=dict)
    """Options for the processor that apply to this prompt."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A model's inputs on the CPU."""

    ids: torch.Tensor
    """[prompts, tokens], padded on the left."""
    mask: torch.Tensor
    seen: dict[str, torch.Tensor]
    """The inputs for images and videos, by name."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The placeholder for images or for videos in a prompt."""

    word: str
    token: int
    around: tuple[int, ...] = ()
    """The tokens around the placeholder that are replaced together with it."""


class Prompts:
    """Creates batches for one model."""

    def __init__(self, processor: Processor | None, pad_token_id: int, model: torch.nn.Module) -> None:
        self._processor = processor
        self._pad = pad_token_id
        # Since transformers 5, Qwen models use this input to find an image's positions.
        self._typed = "mm_token_type_ids" in inspect.signature(model.forward).parameters
        self._kinds = {} if processor is None else _kinds(processor)

    @property
    def placeholders(self) -> list[int]:
        """The placeholder tokens of images and videos, which responses must not contain."""
        return [kind.token for kind in self._kinds.values()]

    def batch(self, prompts: Sequence[Prompt]) -> Batch:
        """Return a batch. Raises RolloutError if the model or a prompt has no placeholder for an image or a video."""
        rows: list[list[int]] = []
        seen: dict[str, list[torch.Tensor]] = {}
        for prompt in prompts:
            row = prompt.tokens
            for name, items in (("images", prompt.images), ("videos", prompt.videos)):
                if len(items):
                    row = self._written(row, name, items, prompt.settings, seen)
            rows.append(row)
        longest = max(map(len, rows))
        ids = torch.tensor([[self._pad] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        features = {name: torch.cat(parts) for name, parts in seen.items()}
        if features and self._typed:
            types = torch.zeros_like(ids)
            for number, name in enumerate(("images", "videos"), start=1):
                if name in self._kinds:
                    types[ids == self._kinds[name].token] = number
            features["mm_token_type_ids"] = types
        return Batch(ids, mask, features)

    def _written(
        self,
        tokens: list[int],
        name: str,
        items: Sequence[object],
        settings: dict[str, object],
        seen: dict[str, list[torch.Tensor]],
    ) -> list[int]:
        kind = self._kinds.get(name)
        if kind is None or self._processor is None:
            raise RolloutError(
                subject="a prompt for the virtual rollout engine",
                found=f"the prompt has {name}, but this model's processor has no token for {name}",
                fix="use a model that accepts the data's images and videos",
            )
        row = list(tokens)
        start = 0
        for item in items:
            made = self._processor(**_asked(kind, name, item), **settings)
            written = made["input_ids"][0].tolist()
            for key, value in made.items():
                if key not in ("input_ids", "attention_mask", "mm_token_type_ids"):
                    seen.setdefault(key, []).append(torch.as_tensor(value))
            first, last = _place(row, start, kind, written)
            row[first:last] = written
            start = first + len(written)
        return row


def _kinds(processor: Processor) -> dict[str, _Kind]:
    found = {}
    for name in ("image", "video"):
        word = getattr(processor, f"{name}_token", None)
        tokens = processor.tokenizer(word, add_special_tokens=False)["input_ids"] if isinstance(word, str) else []
        if isinstance(word, str) and len(tokens) == 1:
            (token,) = tokens
            # Qwen3-VL writes a video as frames, each with its time and its own start and end tokens.
            edges = [getattr(processor, f"vision_{edge}_token", None) for edge in ("start", "end")]
            if name == "video" and all(isinstance(edge, str) for edge in edges):
                around = tuple(processor.tokenizer(edge, add_special_tokens=False)["input_ids"][0] for edge in edges)
                found["videos"] = _Kind(word.join(cast("list[str]", edges)), token, around)
            else:
                found[f"{name}s"] = _Kind(word, token)
    return found


def _asked(kind: _Kind, name: str, item: object) -> dict[str, Any]:
    asked: dict[str, Any] = {"text": [kind.word], "return_tensors": "pt"}
    if isinstance(item, tuple):
        item, metadata = item
        # A video with metadata is already a choice of frames.
        asked |= {"video_metadata": [metadata], "do_sample_frames": False}
    return asked | {name: [item]}


def _place(row: list[int], start: int, kind: _Kind, written: list[int]) -> tuple[int, int]:
    """Return the start and the end of the next placeholder. Consecutive placeholder tokens count as one
    placeholder."""
    width = len(written)
    for first in range(start, len(row)):
        if row[first : first + width] == written and kind.around:
            return first, first + width
        if row[first] == kind.token:
            last = first
            while last < len(row) and row[last] == kind.token:
                last += 1
            if kind.around and (row[first - 1], row[last]) == kind.around:
                return first - 1, last + 1
            return first, last
    raise RolloutError(
        subject="a prompt for the virtual rollout engine",
        expected=f"a placeholder (token {kind.token}) for each image and video",
        found="a prompt with fewer placeholders",
        fix="make max_prompt_length large enough for the prompts and their images",
    )
