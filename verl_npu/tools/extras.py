"""Packages of the extras, which some commands need: pictures, live screens, YAML, endpoints, data sets."""

from __future__ import annotations

import importlib.util

from ..errors import TrainingLogError, VerlNpuError
from ..language import gettext as _


def need(package: str, purpose: str, extra: str = "report", error: type[VerlNpuError] = TrainingLogError) -> None:
    """Refuse at once what cannot be done without a package of an extra; raises `error` if it is not installed."""
    if importlib.util.find_spec(package) is None:
        raise error(
            subject=purpose,
            expected=_("the package {package}").format(package=package),
            found=_("none"),
            fix=f"pip install 'verl-npu[{extra}]'",
        )
