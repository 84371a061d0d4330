"""Checks that packages are installed, such as those of the extras that some commands need: plots, live screens, YAML,
data sets."""

from __future__ import annotations

import importlib.util

from verl_npu.errors import SourceError, VerlNpuError
from verl_npu.language import gettext as _


def is_installed(module: str) -> bool:
    """Return whether Python can find a module. `module` is its full dotted name."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def need(package: str, purpose: str, extra: str = "report", error: type[VerlNpuError] = SourceError) -> None:
    """Raise `error` if a package of an extra is not installed. Commands call this before they start any work."""
    if not is_installed(package):
        raise error(
            subject=purpose,
            found=_("the package {package} is not installed").format(package=package),
            fix=f"pip install 'verl-npu-workbench[{extra}]'",
        )
