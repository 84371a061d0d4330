"""Overrides as a user types them: `key=value …`, a Hydra command line, or the shell script around one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from ....errors import CommandLineError
from .request import SECTION_KEYS, STRAY_GROUPS, Engine, Request
from .unexpanded import unexpanded

__all__ = ["requests"]

_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
# The values in upstream's configuration files that are the same at every pin.
_DEFAULTS: dict[str, object] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
}
# What upstream's mindspeed.yaml gives MindSpeed-LLM, at v0.8.0 and v0.9, of what the rules look at.
_MCORE: dict[str, object] = {
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "reset_attention_mask": True,
    "seq_length": 10240,
    "micro_batch_size": 1,
    "swiglu": True,
    "use_flash_attn": True,
    "use_fused_rmsnorm": True,
    "use_fused_rotary_pos_emb": True,
    "use_fused_swiglu": True,
}
# What the reference's section takes from the actor's at every pin that has it.
_OF_THE_ACTOR = ("use_mbridge", "vanilla_mbridge")
_WORDS = {"true": True, "false": False, "null": None, "none": None}

Parts = tuple[dict[str, object], dict[str, object]]
"""A worker's overrides, and its section."""


def requests(text: str) -> list[Request]:
    """Return what each worker asks for, in the order of its first override.

    Raises CommandLineError if the text cannot be read, or has no override of Megatron's.
    """
    words = _words(text)
    pairs = [match for word in words if (match := _OVERRIDE.fullmatch(word))]
    sections: dict[tuple[Engine, str], Parts] = {}
    for match in pairs:
        for engine in Engine:
            worker, separator, key = match["key"].rpartition(f".{engine.value}.")
            if separator:
                _put(sections.setdefault((engine, worker), ({}, dict(_DEFAULTS))), engine, key, _value(match["value"]))
    if sections:
        return [_request(sections, engine, worker) for engine, worker in sections]
    # Without a section the words are the overrides themselves.
    bare = {match["key"]: _value(match["value"]) for match in pairs if "." not in match["key"]}
    if len(pairs) != len(words) or not bare:
        raise _unreadable(text, "none of Megatron's")
    return [Request("the overrides", bare, {})]


def _put(parts: Parts, engine: Engine, key: str, value: object) -> None:
    overrides, section = parts
    group, separator, name = key.partition(".")
    if separator and group == engine.overrides:
        overrides[name] = value
    elif separator and group in STRAY_GROUPS and engine is Engine.MINDSPEED_LLM:
        section[group] = name
    elif key in SECTION_KEYS:
        section[key] = value


def _request(sections: Mapping[tuple[Engine, str], Parts], engine: Engine, worker: str) -> Request:
    overrides, section = sections[engine, worker]
    role, separator, _ = worker.rpartition(".ref")
    if separator and not overrides:
        # In upstream's configuration the reference's overrides are the actor's until one of its own is given.
        overrides, actors = sections.get((engine, f"{role}.actor"), ({}, {}))
        section = {**{key: actors[key] for key in _OF_THE_ACTOR if key in actors}, **section}
    if engine is Engine.MINDSPEED_LLM:
        overrides = {**_MCORE, **overrides}
    return Request(worker, overrides, section, engine)


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
        expected="'key=value …', or a Hydra command line with <worker>.megatron.override_transformer_config.key=value "
        "or <worker>.mindspeed.mcore_kwargs.key=value",
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
        return [_value(part) for part in _parts(text[1:-1]) if part.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parts(text: str) -> list[str]:
    """Split at the commas that are in no inner brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
