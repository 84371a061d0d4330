"""Makes virtual-ascend's own `torch_npu` and CANN's `acl` importable by adding folders to `sys.path`, as if they were
installed."""

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
"""The folder of the Python packages that come with CANN instead of torch_npu. Ray counts a machine's NPUs with
`acl`."""


def expose(*, first: bool = False) -> None:
    """Put `site/` on `sys.path`. Repeated calls do nothing. If `first` is set, `site/` hides an installed torch_npu.

    Raises:
        RealAscendError: another torch_npu is already imported, or one is installed and `first` is not set.
    """
    folder = str(SITE)
    found = _foreign_torch_npu(folder, hidden=first)
    if found is not None:
        name = variables.NPUS.name
        raise RealAscendError(
            subject=f"the virtual NPUs that {name} requests",
            expected="an environment without a real torch_npu",
            found=f"a real torch_npu in {found}",
            fix=f"unset {name} to use the real NPUs, or use an environment without torch_npu",
        )
    if folder not in sys.path:
        sys.path.insert(0 if first else len(sys.path), folder)
    expose_cann()


def expose_cann() -> None:
    """Put `site_cann/` on `sys.path`. Repeated calls do nothing."""
    if str(CANN_SITE) not in sys.path:
        sys.path.append(str(CANN_SITE))


def withdraw() -> None:
    """Undo `expose`: remove `torch_npu` and `acl` from `sys.path` and `sys.modules`."""
    for folder in map(str, (SITE, CANN_SITE)):
        if folder in sys.path:
            sys.path.remove(folder)
        for name, module in tuple(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
    importlib.invalidate_caches()


def installed() -> ModuleSpec | None:
    """Return the import spec of an installed torch_npu other than virtual-ascend's own, or None if there is no such
    torch_npu."""
    # PathFinder and not find_spec, which would also call the other finders on sys.meta_path.
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
