"""The upstreams that are patched, and where their locks are."""

from __future__ import annotations

from pathlib import Path

from ..registry.patch import Upstream

__all__ = ["UPSTREAMS", "locks_folder"]

# `recipe` lies beside `verl` in a checkout and is in no wheel.
UPSTREAMS = (
    Upstream("verl", ("verl", "recipe")),
    Upstream("transformers", ("transformers",)),
    Upstream("hydra", ("hydra",)),
    Upstream("tensordict", ("tensordict",)),
    # In no package index: its pins are revisions of its git repository.
    Upstream("mindspeed", ("mindspeed",)),
)


def locks_folder() -> Path:
    """Where the locks are: inside the package when it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "patches"
    return shipped if shipped.is_dir() else package.parent / "patches"
