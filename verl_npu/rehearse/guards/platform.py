"""The kind of device that a script asks for."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Finding, Script

__all__ = ["device"]


def device(script: Script) -> Iterator[Finding]:
    """Refuse a script that asks for CUDA by name."""
    if script.settings.text("trainer.device") != "cuda":
        return
    for word in script.trainer.overrides:
        if word.lstrip("+").partition("=")[0] == "trainer.device":
            yield Finding(
                "device",
                True,
                word,
                "a script for CUDA",
                "verl-npu's feature `device` ends such a job at its start: an installation for NPUs has no CUDA",
                "set trainer.device=npu, or leave it out",
            )
