"""vllm-ascend's own switch for reinforcement learning, `additional_config.rl_config`.

No release has the switch yet; the main branch has had it since commit 2c72a26f35 of 2026-08-19. With the switch, an
engine never stores weights in the layout FRACTAL_NZ, uses its own settings even if the process had an engine before,
and does not use expandable segments. The switch also opens vLLM's development endpoints, which nobody asked for.
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

_KEY = "rl_config"
_SWITCH = "enabled"
_CONFIG = "vllm_ascend.ascend_config"
_CLASS = Target(_CONFIG, "RlConfig")
_ADDITIONAL = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"


def wrong_rl_config(config: Section) -> Iterator[Finding]:
    """Yield an error if rl_config contains values that vllm-ascend would reject in the server: unknown keys, or values
    other than True or False."""
    known, _, mode = _current_settings(config)
    if _SWITCH not in known or mode is None:
        return
    # OmegaConf's sections are mappings but are not registered as such.
    pairs = dict(mode.items()) if hasattr(mode, "items") else None
    wrong = [key for key, value in (pairs or {}).items() if key not in known or not isinstance(value, bool)]
    if pairs is None or wrong:
        yield refusal(
            "rollout.rl_config",
            subject=f"{_ADDITIONAL}.{_KEY}",
            expected=f"only keys that the installed vllm-ascend supports ({', '.join(sorted(known))}), each set to "
            "True or False",
            found=str(mode) if pairs is None else ", ".join(f"{key}={pairs[key]!r}" for key in wrong),
            fix="remove unknown keys, and set each known key to True or False",
        )


def enable_rl_mode(config: Section) -> None:
    """Set `rl_config.enabled` in the engine's additional_config. Do nothing if the user has set it, or if the
    installed vllm-ascend does not read it."""
    known, asked, mode = _current_settings(config)
    if _SWITCH not in known or asked is None or (mode is not None and _SWITCH in mode):
        return
    if isinstance(_configured(config), str):
        _set(config, _ADDITIONAL, json.dumps({**asked, _KEY: {**(mode or {}), _SWITCH: True}}))
    else:
        _set(config, f"{_ADDITIONAL}.{_KEY}.{_SWITCH}", True)
    report(
        f"verl-npu sets {_ADDITIONAL}.{_KEY}.{_SWITCH}=True, which the installed vllm-ascend reads; to keep the "
        "setting off, set it to False yourself"
    )


def _current_settings(config: Section) -> tuple[frozenset[str], Any, Any]:
    """Return three things: the keys of rl_config in the installed vllm-ascend, and the engine's additional_config and
    rl_config."""
    engine = config.actor_rollout_ref.rollout
    tree = SourceTree.installed(("vllm_ascend",)) if engine.get("name") == "vllm" else None
    whole = additional_config(config)
    return _known(tree) if tree is not None else frozenset(), whole, whole.get(_KEY) if hasattr(whole, "get") else None


def additional_config(config: Section) -> Any:
    """Return the engine's additional_config, or None if it is a string that is not valid JSON. A string of valid JSON
    is parsed."""
    given = _configured(config)
    if given is None:
        return {}
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return None


def _configured(config: Section) -> Any:
    return ((config.actor_rollout_ref.rollout.get("engine_kwargs") or {}).get("vllm") or {}).get("additional_config")


def _known(tree: SourceTree) -> frozenset[str]:
    """Return the keys of vllm-ascend's class RlConfig, or an empty set if the class does not exist."""
    fields = (field for node in tree.nodes(_CLASS) if isinstance(node, ast.ClassDef) for field in node.body)
    return frozenset(
        field.target.id for field in fields if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def _set(config: Section, where: str, value: object) -> None:
    from omegaconf import OmegaConf

    # merge=True keeps the user's other keys.
    OmegaConf.update(config, where, value, merge=True, force_add=True)
