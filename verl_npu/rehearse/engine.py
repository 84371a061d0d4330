"""Which engine generates in a rehearsal, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from .settings import Settings

__all__ = ["ENGINES", "chosen_engine"]

ENGINES = ("auto", "vllm", "virtual")
_ROLLOUT = "actor_rollout_ref.rollout"
_NO_ENGINES = ("", "???", "hf", "naive", "virtual")
"""Names that need nothing in their place; ??? is the script's own fault and stays."""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def chosen_engine(settings: Settings, asked: str, installed: Callable[[str], str] = _installed) -> tuple[str, str]:
    """Return the engine that takes the place of the script's, empty if none does, and what is to be said of it."""
    own = settings.text(f"{_ROLLOUT}.name")
    if own in _NO_ENGINES:
        return "", ""
    if asked == "vllm":
        return (
            "" if own == "vllm" else "vllm",
            f"the rollout engine is vLLM's, as installed here (not {own})",
        )
    found = installed("vllm")
    instead = f"the rollout engine is transformers' generate; the script's is {own}"
    if asked == "virtual" or own != "vllm" or not found:
        return "virtual", instead
    if "cpu" in found and _sleeps(settings):
        return "virtual", f"{instead}, and vLLM {found}, which is installed, cannot sleep as the script asks"
    return "", "the rollout engine is vLLM's, as installed here"


def _sleeps(settings: Settings) -> bool:
    """Whether vLLM is built so that it can give its memory back; upstream does so unless it is told not to."""
    keys = (f"{_ROLLOUT}.enable_sleep_mode", f"{_ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode")
    told_not_to = any(key in settings and not settings.truth(key) for key in keys)
    return settings.truth(f"{_ROLLOUT}.free_cache_engine") and not told_not_to
