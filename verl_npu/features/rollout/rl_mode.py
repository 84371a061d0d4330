"""vllm-ascend's own switch for reinforcement learning, `additional_config.rl_config`, where the installed one has it.

No release has it; its main has since commit 2c72a26f35 of 2026-08-19. Enabled, an engine lays no weights out in
FRACTAL_NZ whatever its other settings say, takes its own settings and not those of an engine before it, and leaves
expandable segments out. It also opens vLLM's endpoints for developers, which nobody has asked for.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from ...findings import Finding
from ...registry.source.tree import SourceTree, Target
from ...reporting import report
from ..configuration import Section
from .findings import refusal

__all__ = ["additional_config", "enable_rl_mode", "wrong_rl_config"]

_KEY = "rl_config"
_SWITCH = "enabled"
_CONFIG = "vllm_ascend.ascend_config"
_CLASS = Target(_CONFIG, "RlConfig")
_ADDITIONAL = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"


def wrong_rl_config(config: Section) -> Iterator[Finding]:
    """Refuse what vllm-ascend would refuse in the server: another key, or no truth value."""
    known, _, mode = _asked(config)
    if _SWITCH not in known or mode is None:
        return
    # OmegaConf's sections are mappings without being registered as such.
    pairs = dict(mode.items()) if hasattr(mode, "items") else None
    wrong = [key for key, value in (pairs or {}).items() if key not in known or not isinstance(value, bool)]
    if pairs is None or wrong:
        yield refusal(
            "rollout.rl_config",
            subject=f"{_ADDITIONAL}.{_KEY}",
            expected=f"some of {', '.join(sorted(known))}, each True or False, as the installed vllm-ascend has them",
            found=str(mode) if pairs is None else ", ".join(f"{key}={pairs[key]!r}" for key in wrong),
            fix="leave out what it does not know",
        )


def enable_rl_mode(config: Section) -> None:
    """Set `rl_config.enabled` in the engine's additional_config, unless the user has set it or nothing reads it."""
    known, asked, mode = _asked(config)
    if _SWITCH not in known or asked is None or (mode is not None and _SWITCH in mode):
        return
    if isinstance(_given(config), str):
        _set(config, _ADDITIONAL, json.dumps({**asked, _KEY: {**(mode or {}), _SWITCH: True}}))
    else:
        _set(config, f"{_ADDITIONAL}.{_KEY}.{_SWITCH}", True)
    report(
        f"{_ADDITIONAL}.{_KEY}.{_SWITCH}=True, which the installed vllm-ascend reads; set it to False to leave it out"
    )


def _asked(config: Section) -> tuple[frozenset[str], Any, Any]:
    """Return the keys of rl_config that the installed vllm-ascend knows, the engine's additional_config, and its
    rl_config."""
    engine = config.actor_rollout_ref.rollout
    tree = SourceTree.installed(("vllm_ascend",)) if engine.get("name") == "vllm" else None
    whole = additional_config(config)
    return _known(tree) if tree is not None else frozenset(), whole, whole.get(_KEY) if hasattr(whole, "get") else None


def additional_config(config: Section) -> Any:
    """Return the engine's additional_config, which may be a text in JSON; None for a text that is none."""
    given = _given(config)
    if given is None:
        return {}
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return None


def _given(config: Section) -> Any:
    return ((config.actor_rollout_ref.rollout.get("engine_kwargs") or {}).get("vllm") or {}).get("additional_config")


def _known(tree: SourceTree) -> frozenset[str]:
    """Return the keys that vllm-ascend's class has; none if there is no such class."""
    fields = (field for node in tree.nodes(_CLASS) if isinstance(node, ast.ClassDef) for field in node.body)
    return frozenset(
        field.target.id for field in fields if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def _set(config: Section, where: str, value: object) -> None:
    from omegaconf import OmegaConf

    # The user's own keys beside it stay: only this one is set.
    OmegaConf.update(config, where, value, merge=True, force_add=True)
