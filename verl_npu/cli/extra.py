"""Packages of the extra `report`, which pictures and live screens need."""

from __future__ import annotations

import importlib.util

from ..errors import TrainingLogError

__all__ = ["need"]


def need(package: str, purpose: str) -> None:
    """Refuse at once what cannot be done without a package of the extra `report`.

    Raises:
        TrainingLogError: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise TrainingLogError(
            subject=purpose,
            expected=f"the package {package}",
            found="none",
            fix="pip install 'verl-npu[report]'",
        )
