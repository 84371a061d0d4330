"""Which engine generates in a rehearsal, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .settings import Settings

__all__ = ["ENGINES", "Choice", "chosen_engine"]

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
    """It cannot be built so that it could sleep."""


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
    vllm = f"the rollout engine is vLLM's, as installed here{', and never sleeps' if awake else ''}"
    if asked == "vllm":
        return Choice("" if own == "vllm" else "vllm", f"{vllm} (not {own})" if own != "vllm" else vllm, awake)
    instead = f"the rollout engine is transformers' generate; the script's is {own}"
    if asked == "virtual" or own != "vllm" or not found:
        return Choice("virtual", instead, False)
    if awake and _sleeps(settings) and not alone:
        return Choice(
            "virtual", f"{instead}, and vLLM {found}, which is installed, cannot sleep as the script asks", False
        )
    return Choice("", vllm, awake)


def _sleeps(settings: Settings) -> bool:
    """Whether vLLM is built so that it can give its memory back; upstream does so unless it is told not to."""
    keys = (f"{_ROLLOUT}.enable_sleep_mode", f"{_ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode")
    told_not_to = any(key in settings and not settings.truth(key) for key in keys)
    return settings.truth(f"{_ROLLOUT}.free_cache_engine") and not told_not_to
