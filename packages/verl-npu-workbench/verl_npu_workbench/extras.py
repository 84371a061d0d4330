"""What is installed, and packages of the extras that some commands need: pictures, live screens, YAML, data sets."""

from __future__ import annotations

import importlib.util

from verl_npu.errors import TrainingLogError, VerlNpuError
from verl_npu.language import gettext as _


def is_installed(module: str) -> bool:
    """Whether a module could be imported, by its full name."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def need(package: str, purpose: str, extra: str = "report", error: type[VerlNpuError] = TrainingLogError) -> None:
    """Refuse at once what cannot be done without a package of an extra; raises `error` if it is not installed."""
    if not is_installed(package):
        raise error(
            subject=purpose,
            expected=_("the package {package}").format(package=package),
            found=_("none"),
            fix=f"pip install 'verl-npu-workbench[{extra}]'",
        )
