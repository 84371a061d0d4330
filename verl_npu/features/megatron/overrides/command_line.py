"""Overrides as a user types them: `key=value …`, a Hydra command line, or the shell script around one."""

from __future__ import annotations

import re
import shlex

from ....errors import CommandLineError
from .request import SECTION_KEYS, Request
from .unexpanded import unexpanded

__all__ = ["requests"]

_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_SECTION = ".megatron."
_TRANSFORMER = "override_transformer_config."
# The values in upstream's configuration files that are the same at every pin.
_DEFAULTS: dict[str, object] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
}
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def requests(text: str) -> list[Request]:
    """Return what each worker asks for, in the order of its first override.

    Raises CommandLineError if the text cannot be read, or has no override of Megatron's.
    """
    words = _words(text)
    pairs = [match for word in words if (match := _OVERRIDE.fullmatch(word))]
    sections: dict[str, tuple[dict[str, object], dict[str, object]]] = {}
    for match in pairs:
        worker, separator, key = match["key"].rpartition(_SECTION)
        if separator:
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


def _words(text: str) -> list[str]:
    """Split a text as a shell does: without lines that are comments, and with lines that are continued joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    # A script may end in a backslash: `$(cat run.sh)` takes away the line break after it.
    joined = "\n".join(lines).replace("\\\n", " ").rstrip().removesuffix("\\")
    try:
        return shlex.split(joined)
    except ValueError as error:
        raise _unreadable(text, str(error)) from error


def _unreadable(text: str, found: str) -> CommandLineError:
    return CommandLineError(
        subject=f"--check {text[:80]!r}",
        expected="'key=value …', or a Hydra command line with <worker>.megatron.override_transformer_config.key=value",
        found=found,
        fix="give the overrides themselves, or a whole command line or script in one pair of quotes",
    )


def _value(text: str) -> object:
    """Return a value as Hydra reads it: a quoted text is a string, anything else is what it looks like."""
    text = text.strip()
    if (value := unexpanded(text)) is not None:
        return value
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
