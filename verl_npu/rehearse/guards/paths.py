"""Files that a script names and that are not on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .base import Finding, Script

__all__ = ["files"]

_KEYS = (
    r"(.*\.)?(train_files|val_files|partial_pretrain|model\.path|dist_checkpointing_path|custom_reward_function\.path)"
)


def files(script: Script) -> Iterator[Finding]:
    """Warn of paths that do not exist here. The cluster may have them."""
    missing: dict[str, None] = {}
    for key in script.settings.matching(_KEYS):
        if key.startswith(("critic.", "reward")) and script.settings.text("algorithm.adv_estimator") != "gae":
            continue
        value = script.settings.get(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and each.startswith(("/", "~")) and not Path(each).expanduser().exists():
                missing[each] = None
    if missing:
        yield Finding(
            "files",
            False,
            ", ".join(missing),
            f"{len(missing)} that {'is' if len(missing) == 1 else 'are'} not on this machine",
            "the job reads them on the machines that it runs on",
            "see that they are on every node",
        )
