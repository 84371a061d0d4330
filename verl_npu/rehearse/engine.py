"""Which engine generates in a rehearsal, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .settings import Settings

__all__ = ["ENGINES", "Choice", "chosen_engine", "may_sleep"]

ENGINES = ("auto", "vllm", "virtual")
_ROLLOUT = "actor_rollout_ref.rollout"
_NO_ENGINES = ("", "???", "hf", "naive", "virtual")
"""Names that need nothing in their place; ??? is the script's own fault and stays."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, and what is to be said of it."""

    name: str
    """What takes the place of the script's; empty if nothing does."""
    note: str
    awake: bool
    """The rollout engine is vLLM's build for CPUs: it has no sleep mode, and verl cannot split it over ranks."""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def chosen_engine(
    settings: Settings, asked: str, alone: bool = False, installed: Callable[[str], str] = _installed
) -> Choice:
    """Return the engine that generates; `alone` says that the rollout has NPUs of its own."""
    own = settings.text(f"{_ROLLOUT}.name")
    if own in _NO_ENGINES:
        return Choice("", "", False)
    found = installed("vllm")
    # vLLM's build for CPUs cannot sleep. If it shares NPUs with the trainer, that is part of every step.
    awake = "cpu" in found
    vllm = f"the rollout engine is vLLM's, as installed here{', without its sleep mode' if awake else ''}"
    instead = f"the rollout engine is transformers' generate; the script's is {own}"
    if asked == "vllm" and own != "vllm":
        return Choice("vllm", f"{vllm}; the script's is {own}", awake)
    if asked == "vllm":
        return Choice("", vllm, awake)
    if asked == "virtual" or own != "vllm" or not found:
        return Choice("virtual", instead, False)
    if awake and may_sleep(settings) and not alone:
        said = f"{instead}, and vLLM {found}, which is installed, cannot sleep as the script asks"
        return Choice("virtual", said, False)
    return Choice("", vllm, awake)


def may_sleep(settings: Settings) -> bool:
    """Return whether the settings let vLLM be built so that it can give its memory back between steps."""
    asked = [settings.get(key) for key in settings.matching(r"actor_rollout_ref\.rollout\..*enable_sleep_mode")]
    return settings.truth(f"{_ROLLOUT}.free_cache_engine") and False not in asked
