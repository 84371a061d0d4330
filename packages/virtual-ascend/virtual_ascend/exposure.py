"""Makes `torch_npu` and CANN's `acl` importable: packages with a spec, found on `sys.path` like installed ones."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from . import variables
from .errors import RealAscendError

SITE = Path(__file__).parent / "site"
CANN_SITE = Path(__file__).parent / "site_cann"
"""What CANN brings, and no torch_npu: Ray counts the NPUs of a machine by `acl`."""


def expose(*, first: bool = False) -> None:
    """Put `site/` on `sys.path`, once. With `first` it hides a torch_npu that is installed.

    Raises:
        RealAscendError: a torch_npu that is not ours is imported already, or installed and not to be hidden.
    """
    folder = str(SITE)
    found = _foreign_torch_npu(folder, hidden=first)
    if found is not None:
        name = variables.NPUS.name
        raise RealAscendError(
            subject=f"virtual NPUs, for which {name} asks",
            expected="an environment without a real torch_npu",
            found=f"a real torch_npu in {found}",
            fix=f"unset {name} to use the real NPUs, or use an environment without torch_npu",
        )
    if folder not in sys.path:
        sys.path.insert(0 if first else len(sys.path), folder)
    expose_cann()


def expose_cann() -> None:
    """Put `site_cann/` on `sys.path`, once."""
    if str(CANN_SITE) not in sys.path:
        sys.path.append(str(CANN_SITE))


def withdraw() -> None:
    """Make `torch_npu` and `acl` not importable again, as if they had never been exposed."""
    for folder in map(str, (SITE, CANN_SITE)):
        if folder in sys.path:
            sys.path.remove(folder)
        for name, module in tuple(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
    importlib.invalidate_caches()


def installed() -> ModuleSpec | None:
    """Return where a torch_npu that is not ours would be imported from; None if there is none."""
    # PathFinder and not find_spec: the latter would import nothing either, but also asks other finders on
    # sys.meta_path.
    return PathFinder.find_spec("torch_npu", [entry for entry in sys.path if entry != str(SITE)])


def _foreign_torch_npu(ours: str, hidden: bool) -> str | None:
    module = sys.modules.get("torch_npu")
    if module is not None:
        origin = getattr(module, "__file__", None)
        return None if origin is not None and origin.startswith(ours) else str(origin or "an unknown place")
    spec = None if hidden else installed()
    if spec is None:
        return None
    return spec.origin or str(next(iter(spec.submodule_search_locations or []), "torch_npu"))
