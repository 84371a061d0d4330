"""Overrides as a user types them: `key=value …`, or a whole Hydra command line."""

from __future__ import annotations

import re
import shlex
from typing import Any

from ...errors import VerlNpuError
from .overrides import SECTION_KEYS, Request

__all__ = ["CommandLineError", "requests"]

_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_SECTION = ".megatron."
_TRANSFORMER = "override_transformer_config."
# What upstream's own configuration files say of a section, where they agree at every pin.
_DEFAULTS = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
}
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class CommandLineError(VerlNpuError):
    """The text is no list of overrides."""


def requests(text: str) -> list[Request]:
    """What each worker asks for, in the order of its first override.

    Raises CommandLineError where the text cannot be read, or names no override of Megatron's.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise _unreadable(text, str(error)) from error
    pairs = [match for word in words if (match := _OVERRIDE.fullmatch(word))]
    sections: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for match in pairs:
        worker, found, key = match["key"].rpartition(_SECTION)
        if found:
            overrides, section = sections.setdefault(worker, ({}, dict(_DEFAULTS)))
            if key.startswith(_TRANSFORMER):
                overrides[key.removeprefix(_TRANSFORMER)] = _value(match["value"])
            elif key in SECTION_KEYS:
                section[key] = _value(match["value"])
    if sections:
        return [Request(worker, overrides, section) for worker, (overrides, section) in sections.items()]
    # Without a section the words are the overrides themselves.
    bare = {match["key"]: _value(match["value"]) for match in pairs if "." not in match["key"]}
    if len(pairs) != len(words) or not bare:
        raise _unreadable(text, "none of Megatron's")
    return [Request("the overrides", bare, {})]


def _unreadable(text: str, found: str) -> CommandLineError:
    return CommandLineError(
        subject=f"--check {text[:80]!r}",
        expected="'key=value …', or a Hydra command line with <worker>.megatron.override_transformer_config.key=value",
        found=found,
        fix="quote the whole text once for the shell",
    )


def _value(text: str) -> Any:
    """A value as Hydra reads it: quoted is a string, the rest what it looks like."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [_value(part) for part in text[1:-1].split(",") if part.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
