"""Keys that are given twice or not at all, and values that a variable of the script should have filled."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Finding, Script

__all__ = ["empty", "engine", "shadowed"]

_ENGINE = "actor_rollout_ref.rollout.name"
_PARALLEL = ("parallel_size", "n_gpus_per_node", "nnodes", "batch_size", "batch_size_per_gpu")


def shadowed(script: Script) -> Iterator[Finding]:
    """Warn of a key that is given with two values: the later one wins."""
    values: dict[str, str] = {}
    for word in script.trainer.overrides:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or word.startswith("~"):
            continue
        if values.get(key, value) != value:
            yield Finding(
                "shadowed",
                False,
                key,
                f"{values[key]} and later {value}",
                "Hydra takes the last one",
                "leave one of them out",
            )
        values[key] = value


def empty(script: Script) -> Iterator[Finding]:
    """Refuse a size that is empty: a variable of the script that nothing was assigned to."""
    for word in script.trainer.overrides:
        key, equals, value = word.lstrip("+").partition("=")
        if equals and not value.strip("'\" ") and key.endswith(_PARALLEL):
            yield Finding(
                "empty",
                True,
                word,
                "no value",
                "Hydra takes it as an empty text, and verl cannot make a number of it",
                "look for the variable of the script that is meant, and whether it is assigned",
            )


def engine(script: Script) -> Iterator[Finding]:
    """Refuse a script that names no rollout engine if the configuration of its revision names none either."""
    if script.settings.text(_ENGINE) == "???":
        yield Finding(
            "rollout engine",
            True,
            _ENGINE,
            "no value, and the revision's configuration has none either",
            "each rollout worker reads it when it is built, and OmegaConf raises MissingMandatoryValue",
            f"add {_ENGINE}=vllm, or the engine that is meant",
        )
