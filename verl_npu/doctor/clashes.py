"""Versions that are shown to fail: only these are errors, all other deviations are warnings."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from ..ascend.matrix import Component
from .package import Package
from .site import Site

__all__ = ["CLASHES", "Clash", "Judgement", "clash_with"]


@dataclass(frozen=True, slots=True)
class Clash:
    """Versions of one part with which something fails."""

    component: Component
    versions: SpecifierSet
    pins: tuple[str, ...]
    """The pins that fail; empty means all."""
    needed: str
    install: str
    """A version that works."""
    why: str
    """With the text of the error."""
    source: str
    """Where that was seen."""
    healed: str = ""
    """How verl-npu makes it work; empty if it does not."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A clash in one environment."""

    why: str
    needed: str
    install: str
    healed: bool


CLASHES = (
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet("<4.52.4"),
        ("796871d7", "v0.6.1"),
        "4.52.4 or later",
        "4.52.4",
        "`import verl` ends with a ValueError on NPUs",
        "verl/__init__.py of these pins",
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.54,<4.55"),
        (),
        "4.53.3 or before, or 4.55.4 or later",
        "4.57.6",
        "transformers 4.54 has no code for NPUs, and flash_attention_2, which verl asks for, ends with an ImportError",
        "https://github.com/huggingface/transformers/pull/40151",
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.55.2,<5"),
        ("796871d7",),
        "4.52.4",
        "4.52.4",
        "verl's workers end with `cannot import name 'index_first_axis' from "
        "'transformers.integrations.npu_flash_attention'`",
        "https://github.com/volcengine/verl/issues/3561",
        healed="verl-npu's feature attention puts the function there; it trained so on virtual NPUs (SIMULATED)",
    ),
    Clash(
        Component.TRANSFORMERS,
        SpecifierSet(">=4.55,<4.55.3"),
        (),
        "4.53.3 or before, or 4.55.4 or later",
        "4.57.6",
        "transformers 4.55.0 to 4.55.2 look for flash_attn on NPUs and end with `No module named 'flash_attn'`",
        "https://github.com/huggingface/transformers/pull/40151",
        healed="verl-npu's feature attention leads it to the NPU's own flash attention",
    ),
)


def clash_with(site: Site, component: Component, package: Package) -> Judgement | None:
    """Return why this version fails here; None if it is not known to."""
    version = package.parsed
    if version is None:
        return None
    pin = site.pin.name if site.pin else ""
    for clash in CLASHES:
        concerned = clash.component is component and (not clash.pins or pin in clash.pins)
        if not concerned or not clash.versions.contains(version, prereleases=True):
            continue
        healed = bool(clash.healed) and site.attention_in_force()
        why = f"{clash.why}; {clash.healed}" if healed else f"{clash.why} ({clash.source})"
        return Judgement(why, clash.needed, clash.install, healed)
    return None
