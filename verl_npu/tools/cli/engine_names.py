"""What `verl-npu check` says of the names of vLLM and vllm-ascend that verl-npu relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from ...features.engine_names import NAMES, Lack, lacks
from ...registry.source.tree import SourceTree
from . import terminal

_DISTRIBUTIONS = {name.package: name.package.replace("_", "-") for name in NAMES}


def rollout_lacks() -> Sequence[Lack]:
    """Return the names that the vLLM and the vllm-ascend of this environment lack. Neither is imported."""
    releases = _releases()
    return list(lacks(NAMES, SourceTree.installed(list(releases)), releases)) if releases else []


def print_lacks(found: Sequence[Lack]) -> None:
    """Print them, and what happens without each of them; nothing if there are none."""
    for package, distribution in _DISTRIBUTIONS.items():
        own = [lack for lack in found if lack.name.package == package]
        if not own:
            continue
        terminal.echo()
        terminal.paragraph(
            f"{distribution} {own[0].release}, which is installed here, lacks {len(own)} "
            f"name{'' if len(own) == 1 else 's'} that verl-npu relies on:"
        )
        for lack in own:
            terminal.line("  ", lack.name.title)
            terminal.paragraph(f"Found {lack.found}. Without it, {lack.name.absent}.", indent="    ")


def _releases() -> Mapping[str, str]:
    """Return the versions of what is installed, if they are versions: some builds call themselves `dev`."""
    from packaging.version import InvalidVersion, Version

    found = {}
    for package, distribution in _DISTRIBUTIONS.items():
        try:
            found[package] = str(Version(metadata.version(distribution)))
        except (metadata.PackageNotFoundError, InvalidVersion):
            continue
    return found
