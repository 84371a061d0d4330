"""Packages of the extra `evaluate`."""

from __future__ import annotations

import importlib.util

from ..errors import EvaluationError

__all__ = ["need"]


def need(package: str, purpose: str) -> None:
    """Refuse what cannot be done without a package of the extra `evaluate`.

    Raises:
        EvaluationError: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise EvaluationError(
            subject=purpose, expected=f"the package {package}", found="none", fix="pip install 'verl-npu[evaluate]'"
        )
