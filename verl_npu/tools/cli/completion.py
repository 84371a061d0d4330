"""What the shell completes: patches, features, pins and sources."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ...features import load
from ...registry.patch import Feature
from .upstreams import INSTALLED, locks

HOW = """\b
Completion by the Tab key (for zsh: zsh_source, for fish: fish_source):
  eval "$(_VERL_NPU_COMPLETE=bash_source verl-npu)"  # in ~/.bashrc"""


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path, or the one word that stands for the installed upstreams."""
    own = [CompletionItem(INSTALLED)] if incomplete and INSTALLED.startswith(incomplete) else []
    return [*own, CompletionItem(incomplete, type="file")]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a feature, or once its dot is typed one of its patches."""
    features = load()
    if "." in incomplete:
        patches = [patch for feature in features for patch in feature]
        return [
            CompletionItem(patch.id, help=str(patch.target)) for patch in patches if patch.id.startswith(incomplete)
        ]
    return [item for feature in features for item in _feature(feature, incomplete)]


def _feature(feature: Feature, incomplete: str) -> list[CompletionItem]:
    if not feature.name.startswith(incomplete):
        return []
    # Two candidates keep the shell from adding a blank after the feature, where a dot may follow.
    return [CompletionItem(feature.name, help=feature.summary), *(CompletionItem(patch.id) for patch in feature)]


def complete_pin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a pin of the upstream that the command line names, or of any."""
    chosen = ctx.params.get("upstream")
    pins = {lock.pin for name, found in locks().items() if chosen in (None, name) for lock in found}
    return [CompletionItem(pin) for pin in sorted(pins) if pin.startswith(incomplete)]
